// A single row of activations behind a norm times matrices in Q2_K, of so few slices that a lane keeps all activations
// it needs in registers: a warp has the same columns of many rows, two groups a lane of every slice, and shared memory
// is read for weights alone. Eight rows make an octet, whose groups four warps share.
//
// A lane (g, t), with g = lane / 4 and t = lane % 4, has groups of superblock t of row g, so it reads the factors of a
// superblock once for both of its groups. The sums of a group of every slice are those of `add_group`; then come groups
// side by side, then warps, then superblocks, which is the order of `add_lanes`.
#pragma once
#include "gemv/gemv_b1.cuh"

constexpr uint32_t OCTET = 8, OCTET_WARPS = 4;

// sum + the products of the first or the last two of four bytes and two whole numbers of 16 bits.
template <bool LAST>
__device__ __forceinline__ int add_two(int numbers, uint32_t bytes, int sum) {
    int out;
    if constexpr (LAST) asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(numbers), "r"(bytes), "r"(sum));
    else asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(numbers), "r"(bytes), "r"(sum));
    return out;
}

// Activations of two groups side by side.
struct TwoGroups {
    int4 low[2], high[2];
    Meta meta[2];
};

// Of SLICES slices in shared memory: those of groups `at` and the next.
template <uint32_t SLICES>
__device__ __forceinline__ void load_columns(TwoGroups (&x)[SLICES], const uint8_t *units, uint32_t at) {
    using Layout = UnitLayout<true>;
#pragma unroll
    for (uint32_t s = 0; s < SLICES; s++, units += Layout::BYTES) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *codes = units + Layout::codes(at + i);
            x[s].low[i] = reinterpret_cast<const int4 *>(codes)[0],
            x[s].high[i] = *reinterpret_cast<const int4 *>(codes + Layout::HIGH);
            x[s].meta[i] = *reinterpret_cast<const Meta *>(units + Layout::meta(at + i));
        }
    }
}

// Four times the sum of products of a half, whose codes are the pairs of bits of a word.
__device__ __forceinline__ int add_half(uint32_t codes, const int4 &x) {
    const uint32_t upper = codes >> 4;
    const int even = add_unsigned(upper & 0x03030303, x.z, add_unsigned(codes & 0x03030303, x.x, 0));
    return 4 * even + add_unsigned(upper & 0x0c0c0c0c, x.w, add_unsigned(codes & 0x0c0c0c0c, x.y, 0));
}

// Adds the products of a group: the LAST one of two that share `scales`, a byte for each half. A factor of a half is
// four bits of it, the minimum's stand above those of the scale. With `scale` comes what takes INTEGER_BASE away from
// the sum that it scales.
template <bool LAST>
__device__ __forceinline__ float add_columns(
    uint32_t low, uint32_t high, uint32_t scales, float scale, float base, float min, const TwoGroups &x, float sum) {
    const int halves = __byte_perm(add_half(low, x.low[LAST]), add_half(high, x.high[LAST]), 0x5410);
    const Meta &meta = x.meta[LAST];
    const int scaled = add_two<LAST>(halves, scales & 0x0f0f0f0f, INTEGER_BITS);
    const int least = add_two<LAST>(reinterpret_cast<const int &>(meta.sums), scales & 0xf0f0f0f0, 0);
    const float part = __fmaf_rn(min, (float)least, __fmaf_rn(scale, __int_as_float(scaled), base));
    return __fmaf_rn(meta.scale, part, sum);
}

// The products of a row's groups `at` and the next, of the lane's superblock, of every slice; `row` is where the lane's
// row begins.
template <uint32_t SLICES>
__device__ __forceinline__ float multiply_columns(const uint8_t *row, uint32_t at, const TwoGroups (&x)[SLICES]) {
    constexpr uint32_t SCALES = code_bytes(Q2_K) * SLICE_GROUPS, BLOCKS = SCALES + scale_bytes(Q2_K) * SLICE_GROUPS;
    float sum[2] = {};
#pragma unroll
    for (uint32_t s = 0; s < SLICES; s++, row += UNIT_BYTES<Q2_K>) {
        const uint4 codes = *reinterpret_cast<const uint4 *>(row + code_bytes(Q2_K) * at);
        const uint32_t scales = *reinterpret_cast<const uint32_t *>(row + SCALES + scale_bytes(Q2_K) * at);
        const float2 d = __half22float2(reinterpret_cast<const __half2 *>(row + BLOCKS)[threadIdx.x % 4]);
        // The sums of codes are four times too large, those of minimums sixteen times. All of this is exact.
        const float scale = 0.25f * d.x, base = -INTEGER_BASE * scale, min = -0.0625f * d.y;
        sum[0] = add_columns<false>(codes.x, codes.y, scales, scale, base, min, x[s], sum[0]);
        sum[1] = add_columns<true>(codes.z, codes.w, scales, scale, base, min, x[s], sum[1]);
    }
    return __fadd_rn(sum[0], sum[1]);
}

// Sums of the rows of octets by lane and warp.
template <uint32_t OCTETS>
using OctetParts = float[OCTETS][OCTET][16];

// The sum of a row in all four of its lanes.
__device__ __forceinline__ float add_octet(const float (&parts)[OCTET][16]) {
    const uint32_t lane = threadIdx.x % WARP;
    const float4 v = reinterpret_cast<const float4 *>(parts[lane / 4])[lane % 4];
    float total = __fadd_rn(__fadd_rn(v.x, v.y), __fadd_rn(v.z, v.w));
    total = __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 1));
    return __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 2));
}

// What a warp takes of octets, and where its lanes read and write.
struct ColumnLane {
    uint32_t g, at, to;  // row of an octet; first group; place of the sum among a row's

    // Lanes half a slice apart take each other's neighbours, as rows stand an odd number of 32 bytes apart: no two of a
    // quarter warp meet in a bank.
    __device__ __forceinline__ explicit ColumnLane(uint32_t warp) {
        const uint32_t lane = threadIdx.x % WARP, t = lane % 4, own = warp % OCTET_WARPS ^ t / 2;
        g = lane / 4, at = 8 * t + 2 * own, to = OCTET_WARPS * t + own;
    }
};

template <uint32_t SLICES>
constexpr uint32_t COLUMN_ROW = SLICES * UNIT_BYTES<Q2_K>;
template <uint32_t SLICES>
constexpr uint32_t OCTET_BYTES = OCTET * COLUMN_ROW<SLICES>;

template <uint32_t OCTETS>
struct RegistersStorage {
    __align__(16) OctetParts<OCTETS> parts;
    float shares[WARPS], outputs[OCTETS * OCTET / 2];
    unsigned long long barriers[OCTETS];
};

// The whole block, of OCTETS octets: each of a gated unit has four rows of either matrix. Half of the warps take one
// half of them. So many of a half are on their way before the activations, the others behind them, as what is asked for
// first comes first.
template <uint32_t SLICES, uint32_t OCTETS, bool GATED, uint32_t EARLY>
__device__ __forceinline__ void gemv_registers(
    const MatvecArgs &args, const Segment &segment, RegistersStorage<OCTETS> &space) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr uint32_t BYTES = OCTET_BYTES<SLICES>, OWN = GATED ? BYTES / 2 : BYTES, EACH = OCTETS / 2;
    static_assert(OCTETS <= WARPS && COLUMN_ROW<SLICES> / 32 % 2 == 1,
        "a warp brings an octet at most, and rows take different banks");
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP, tile = blockIdx.x - segment.first_tile;
    const Matrix &m = segment.matrix;
    const uint32_t barrier = shared_address(space.barriers + warp);
    const auto start = [&]() {
        if (elect_lane()) {
            const uint32_t to = shared_address(shared) + warp * BYTES;
            const size_t from = (size_t)(tile * OCTETS + warp) * OWN;
            announce(barrier, BYTES);
            copy_run(to, m.data + from, OWN, barrier);
            if (GATED) copy_run(to + OWN, args.segments[1].matrix.data + from, OWN, barrier);
        }
        __syncwarp();
    };
    if (warp < OCTETS && elect_lane()) {
        make_barrier(barrier, 1);
        publish_barriers();
    }
    __syncwarp();
    const bool is_early = warp % EACH < EARLY;
    if (warp < OCTETS && is_early) start();
    const uint32_t column = (tile * OCTETS + warp) * OCTET + lane / 4;
    const float bias = !GATED && warp < OCTETS && segment.bias != nullptr ? __ldg(segment.bias + column) : 0.0f;
    uint8_t *units = shared + OCTETS * BYTES;
    float none = 0.0f;
    put_normed<true>(NormInput{args.x.x, args.norm, args.cols}, shared_address(units), space.shares, nullptr, none);
    if (warp < OCTETS && !is_early) start();
    __syncthreads();

    const ColumnLane own(warp);
    TwoGroups x[SLICES];
    load_columns<SLICES>(x, units, own.at);
    const uint32_t first = warp / OCTET_WARPS * EACH;
    const uint8_t *row = shared + first * BYTES + own.g * COLUMN_ROW<SLICES>;
    float *part = &space.parts[first][own.g][own.to];
    uint32_t full = shared_address(space.barriers + first);
#pragma unroll 1
    for (uint32_t i = 0; i < EACH; i++, row += BYTES, part += sizeof(space.parts[0]) / sizeof(float), full += 8) {
        wait_phase(full, 0);
        *part = multiply_columns<SLICES>(row, own.at, x);
    }
    __syncthreads();
    if (warp < OCTETS) {
        const float factor = norm_factor(space.shares, args.cols, args.eps),
                    total = __fmul_rn(add_octet(space.parts[warp]), factor);
        if constexpr (GATED) {
            const float up = __shfl_down_sync(ALL_LANES, total, WARP / 2);
            if (lane % 4 == 0 && lane < WARP / 2)
                space.outputs[warp * OCTET / 2 + lane / 4] = gated(args.unit, total, up);
        } else if (lane % 4 == 0) {
            segment.out[column] = segment.bias != nullptr ? __fadd_rn(total, bias) : total;
        }
    }
    if constexpr (GATED) {
        constexpr uint32_t OUTPUTS = OCTETS * OCTET / 2;
        __syncthreads();
        if (threadIdx.x < OUTPUTS)
            emit_blocks(args.gated, 0, tile * OUTPUTS + threadIdx.x, m.rows, space.outputs[threadIdx.x]);
    }
#endif
}

// Octets of a round of the head's blocks, each brought by one warp, and rounds that are on their way at once.
constexpr uint32_t ROUND = WARPS, ROUNDS = 2;

struct HeadStorage {
    __align__(16) OctetParts<ROUND> parts[ROUNDS];
    float shares[WARPS], outputs[1][1];
    unsigned long long keys[1][WARPS];
    unsigned long long barriers[ROUNDS][ROUND];
};

// The head, by blocks that stay: each takes a run of octets of its own, a round at a time.
template <uint32_t SLICES>
__device__ __forceinline__ void gemv_registers_head_tiles(const MatvecArgs &args, HeadStorage &space) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr uint32_t BYTES = OCTET_BYTES<SLICES>, EACH = ROUND / 2;
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const Segment &segment = args.segments[0];
    const Matrix &m = segment.matrix;
    const auto begin_of = [&](uint32_t block) {
        return (uint32_t)((unsigned long long)(m.rows / OCTET) * block / gridDim.x);
    };
    const uint32_t begin = begin_of(blockIdx.x), end = begin_of(blockIdx.x + 1);
    // The warp's octet of a round.
    const auto start = [&](uint32_t round) {
        const uint32_t octet = begin + ROUND * round + warp, slot = round % ROUNDS * ROUND + warp;
        if (octet < end && elect_lane()) {
            const uint32_t barrier = shared_address(space.barriers[0] + slot);
            announce(barrier, BYTES);
            copy_run(shared_address(shared) + slot * BYTES, m.data + (size_t)octet * BYTES, BYTES, barrier);
        }
        __syncwarp();
    };
    if (elect_lane()) {
#pragma unroll
        for (uint32_t i = 0; i < ROUNDS; i++) make_barrier(shared_address(space.barriers[i] + warp), 1);
        publish_barriers();
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < ROUNDS; i++) start(i);
    uint8_t *units = shared + ROUNDS * ROUND * BYTES;
    float none = 0.0f;
    put_normed<true>(NormInput{args.x.x, args.norm, args.cols}, shared_address(units), space.shares, nullptr, none);
    __syncthreads();

    const ColumnLane own(warp);
    TwoGroups x[SLICES];
    load_columns<SLICES>(x, units, own.at);
    const float factor = norm_factor(space.shares, args.cols, args.eps);
    const uint32_t half = warp / OCTET_WARPS * EACH;
    unsigned long long key = 0;
#pragma unroll 1
    for (uint32_t round = 0; begin + ROUND * round < end; round++) {
        const uint32_t slot = round % ROUNDS, from = begin + ROUND * round;
        const uint8_t *row = shared + (slot * ROUND + half) * BYTES + own.g * COLUMN_ROW<SLICES>;
        float *part = &space.parts[slot][half][own.g][own.to];
        const uint32_t full = shared_address(space.barriers[slot] + half);
#pragma unroll 1
        for (uint32_t i = 0; i < EACH && from + half + i < end;
            i++, row += BYTES, part += sizeof(space.parts[0][0]) / sizeof(float)) {
            wait_phase(full + 8 * i, round / ROUNDS % 2);
            *part = multiply_columns<SLICES>(row, own.at, x);
        }
        // Sums of the next round go elsewhere, so those of this one may be read until all have met again.
        __syncthreads();
        start(round + ROUNDS);
        if (from + warp >= end) continue;
        const float v = __fmul_rn(add_octet(space.parts[slot][warp]), factor);
        const uint32_t column = (from + warp) * OCTET + own.g;
        if (lane % 4 == 0)
            put_sum(args, segment, segment.out, column, v,
                segment.bias != nullptr ? __ldg(segment.bias + column) : 0.0f, 0.0f, key);
    }
    finish_block<1>(args, m.rows, space, key);
#endif
}
