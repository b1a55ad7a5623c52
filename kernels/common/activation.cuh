// Writing activations: the float, and the 8-bit block of its warp or of eight of its lanes.
#pragma once
#include "device.cuh"

// Below this the reciprocal of the scale would leave the range of f32.
constexpr float SMALLEST = 1e-36f;

// Scale of a block, and its reciprocal, from the largest magnitude. A block that holds no finite number has codes of 0 and a scale of NaN.
struct BlockScale {
    float scale, inverse;
    bool finite;
};

__device__ __forceinline__ BlockScale block_scale(uint32_t largest_bits) {
    const float largest = __uint_as_float(largest_bits);
    // Magnitudes compare as integers, in which NaN is the largest.
    if (largest_bits >= 0x7f800000u) return BlockScale{__int_as_float(0x7fc00000), 0.0f, false};
    if (largest < SMALLEST) return BlockScale{0.0f, 0.0f, true};
    return BlockScale{__fdiv_rn(largest, 127.0f), __fdiv_rn(127.0f, largest), true};
}

__device__ __forceinline__ int code_of(const BlockScale &block, float v) {
    return block.finite ? __float2int_rn(__fmul_rn(v, block.inverse)) : 0;
}

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// Called by a whole warp that holds 32 consecutive elements of a row; `col` is the lane's own, past `width` for none.
__device__ __forceinline__ void emit(const Activation &out, uint32_t row, uint32_t col, uint32_t width, float v) {
    const size_t at = (size_t)row * width + col;
    if (col < width) out.x[at] = v;
    if (out.q == nullptr) return;
    const BlockScale block = block_scale(__reduce_max_sync(ALL_LANES, magnitude(v)));
    const int q = code_of(block, v);
    int sum = q;
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    const int upper = __shfl_sync(ALL_LANES, sum, 16);
    if (col >= width) return;
    out.q[at] = (int8_t)q;
    if (col % WARP == 0) out.meta[at / WARP] = Meta{block.scale, make_short2((short)sum, (short)upper)};
}

// Four consecutive elements a lane, so that eight lanes make a block: the lane's codes, and the block's factors. The same bits as `emit`.
__device__ __forceinline__ uint32_t encode_quad(const float4 &v, Meta &meta) {
    uint32_t largest = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    const BlockScale block = block_scale(largest);
    const int a = code_of(block, v.x), b = code_of(block, v.y), c = code_of(block, v.z), d = code_of(block, v.w);
    int sum = a + b + c + d;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    // The first lane of a block is the one whose factors are used: it has the sum of the lower half.
    const int upper = __shfl_xor_sync(ALL_LANES, sum, 4);
    meta = Meta{block.scale, make_short2((short)sum, (short)upper)};
    return (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | (uint32_t)d << 24;
}

// The gated unit of the feed-forward.
__device__ __forceinline__ float gated(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}
