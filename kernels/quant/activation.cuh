// Writing activations: the float, and the 8-bit block of its warp or of eight of its lanes; or the 16-bit float.
#pragma once
#include "quant/f16_layout.cuh"

// Below this the scale would be no normal number.
constexpr float SMALLEST = 2e-36f;
// Added to a small number, it leaves the number's nearest integer in the lowest bits.
constexpr float ROUNDER = 12582912.0f;

// Scale of a block, its reciprocal, and the bits that its codes have. A block that holds no finite number has codes of
// 0 and a scale of NaN.
struct BlockScale {
    float scale, inverse;
    uint32_t bits;
};

// From the bits of the largest magnitude. Every path takes its codes from here, so the quick division rounds alike in
// all of them.
__device__ __forceinline__ BlockScale block_scale(uint32_t largest_bits) {
    const float largest = __uint_as_float(largest_bits), scale = __fmul_rn(largest, 1.0f / 127.0f);
    // Magnitudes compare as integers, in which NaN is the largest. Without branches, so that several blocks are on
    // their way at once.
    const bool is_finite = largest_bits < 0x7f800000u, is_small = largest < SMALLEST;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
    return BlockScale{is_finite ? (is_small ? 0.0f : scale) : __int_as_float(0x7fc00000),
        is_finite && !is_small ? inverse : 0.0f, is_finite ? 0xffffffffu : 0u};
}

// The code in the lowest byte; what is above it has no meaning.
__device__ __forceinline__ uint32_t code_of(const BlockScale &block, float v) {
    return __float_as_uint(__fmaf_rn(v, block.inverse, ROUNDER));
}

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// The code of a lane's element of the warp's block, and the block's factors.
__device__ __forceinline__ int8_t encode_lane(float v, Meta &meta) {
    const BlockScale block = block_scale(__reduce_max_sync(ALL_LANES, magnitude(v)));
    const int8_t q = (int8_t)(code_of(block, v) & block.bits);
    // Both halves' sums at once: the lower one stands in the lower 16 bits.
    const int sums = __reduce_add_sync(ALL_LANES, threadIdx.x % WARP < 16 ? q : q * 65536);
    const short lower = (short)sums;
    meta = Meta{block.scale, make_short2(lower, (short)((sums - lower) >> 16))};
    return q;
}

// For floats and 8-bit blocks alone. Called by a whole warp that holds 32 consecutive elements of a row; `col` is the
// lane's own, past `width` for none.
__device__ __forceinline__ void emit_blocks(
    const Activation &out, uint32_t row, uint32_t col, uint32_t width, float v) {
    const size_t at = (size_t)row * width + col;
    if (col < width) out.x[at] = v;
    if (out.q == nullptr) return;
    Meta meta;
    const int8_t q = encode_lane(v, meta);
    if (col >= width) return;
    out.q[at] = q;
    if (col % WARP == 0) out.meta[at / WARP] = meta;
}

// The same for every form.
__device__ __forceinline__ void emit(const Activation &out, uint32_t row, uint32_t col, uint32_t width, float v) {
    if (!is_f16(out)) emit_blocks(out, row, col, width, v);
    else if (col < width) put_f16(out, row, col, width, v);
}

// Four consecutive elements a lane, so that eight lanes make a block: the lane's codes, and the block's factors, which
// those of its first lane are. COUNT of these at once. The same bits as `emit_blocks`.
template <int COUNT>
__device__ __forceinline__ void encode_quads(const float4 (&v)[COUNT], uint32_t (&codes)[COUNT], Meta (&meta)[COUNT]) {
    uint32_t largest[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        largest[i] = max(max(magnitude(v[i].x), magnitude(v[i].y)), max(magnitude(v[i].z), magnitude(v[i].w)));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) largest[i] = max(largest[i], __shfl_xor_sync(ALL_LANES, largest[i], step));
    }
    // A half's sum has 12 bits, so two stand in one word.
    int sums = 0;
    static_assert(COUNT <= 2, "sums stand in one word");
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const BlockScale block = block_scale(largest[i]);
        const uint32_t low = __byte_perm(code_of(block, v[i].x), code_of(block, v[i].y), 0x0040);
        const uint32_t high = __byte_perm(code_of(block, v[i].z), code_of(block, v[i].w), 0x0040);
        codes[i] = __byte_perm(low, high, 0x5410) & block.bits, meta[i].scale = block.scale;
        sums += __dp4a((int)codes[i], 0x01010101, 0) << (16 * i);
    }
    sums += __shfl_xor_sync(ALL_LANES, sums, 1);
    sums += __shfl_xor_sync(ALL_LANES, sums, 2);
    // The first lane of a block has the sum of the lower half.
    const int upper = __shfl_xor_sync(ALL_LANES, sums, 4);
    const short low = (short)sums, low_upper = (short)upper;
    meta[0].sums = make_short2(low, low_upper);
    if (COUNT > 1) meta[COUNT - 1].sums = make_short2((short)((sums - low) >> 16), (short)((upper - low_upper) >> 16));
}

__device__ __forceinline__ uint32_t encode_quad(const float4 &v, Meta &meta) {
    const float4 quad[1] = {v};
    uint32_t codes[1];
    Meta metas[1];
    encode_quads<1>(quad, codes, metas);
    meta = metas[0];
    return codes[0];
}

// Four consecutive elements a lane in the forms that are wanted, of rows of whole 8-bit blocks; by whole warps, which
// may reach past the row, and whose lanes' blocks are those of the row. The same bits as `emit`.
template <bool ANY_FORM>
__device__ __forceinline__ void emit_quad(
    const Activation &out, uint32_t row, uint32_t quad, uint32_t width, bool inside, const float4 &v) {
    const size_t at = (size_t)row * (width / 4) + quad;
    if (ANY_FORM && is_f16(out)) {
        if (inside) put_f16_quad(out, row, 4 * quad, width, v);
        return;
    }
    if (inside) reinterpret_cast<float4 *>(out.x)[at] = v;
    if (out.q == nullptr) return;
    Meta meta;
    const uint32_t codes = encode_quad(v, meta);
    if (!inside) return;
    reinterpret_cast<uint32_t *>(out.q)[at] = codes;
    if (quad % 8 == 0) out.meta[at / 8] = meta;
}

__device__ __forceinline__ float sigmoid_of(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }

__device__ __forceinline__ float activate(const Sigmoid &kind, float x) {
    const float inner = __fmul_rn(x, __fmaf_rn(__fmul_rn(kind.cubic, x), x, kind.linear));
    return __fdiv_rn(x, __fadd_rn(1.0f, expf(-inner)));
}

// The gated unit of the feed-forward.
__device__ __forceinline__ float gated(const Sigmoid &kind, float gate, float up) {
    return __fmul_rn(activate(kind, gate), up);
}

// The same with its operands held within `limit` and one added to the second: activate(min(gate, limit)) * (up + 1).
__device__ __forceinline__ float clamped_gated(float slope, float limit, float gate, float up) {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return __fmul_rn(activate(Sigmoid{slope, 0.0f}, g), __fadd_rn(u, 1.0f));
}
