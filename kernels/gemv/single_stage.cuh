// A single row of 8-bit activations times a quantized matrix, two rows a warp, all of whose bytes are on their way at
// once: without a ring, the way from a block's start to its wait has few instructions, and that is the way of a block
// that comes late. The sums are those of gemv_b1.cuh.
#pragma once
#include "gemv/gemv_b1.cuh"

#include <type_traits>

struct SingleStageStorage {
    unsigned long long barriers[WARPS];
    LevelWords level_words;
};

// Adds two rows of so many groups, which stand `distance` bytes apart.
template <uint32_t TYPE>
__device__ __forceinline__ void add_two_rows(const uint8_t *rows, uint32_t distance, uint32_t groups, const uint8_t *x,
    const LevelWords &level_words, float (&sum)[2]) {
    constexpr uint32_t AT_ONCE = 4;
    if constexpr (HOLDS_TWO<TYPE>) {
        const auto add = [&](uint32_t i) {
            add_blocks<TYPE, 2, true>(rows + i * UNIT_BYTES<TYPE>, distance, x + i * ROW_OF_UNIT, 0, level_words, sum);
        };
#pragma unroll 1
        for (; groups >= AT_ONCE * SLICE_GROUPS;
            groups -= AT_ONCE * SLICE_GROUPS, rows += AT_ONCE * UNIT_BYTES<TYPE>, x += AT_ONCE * ROW_OF_UNIT) {
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) add(i);
        }
#pragma unroll 1
        for (; groups >= 2 * SLICE_GROUPS;
            groups -= 2 * SLICE_GROUPS, rows += 2 * UNIT_BYTES<TYPE>, x += 2 * ROW_OF_UNIT)
            add(0), add(1);
    }
#pragma unroll 1
    while (groups > 0) {
        const uint32_t of_unit = min((uint32_t)SLICE_GROUPS, groups);
        add_blocks<TYPE, 2, false>(rows, distance, x, of_unit, level_words, sum);
        groups -= of_unit, rows += UNIT_BYTES<TYPE>, x += ROW_OF_UNIT;
    }
}

// Some pairs of rows: pairs stand `step` bytes apart, and the rows of one `distance`.
struct PairsOfRows {
    const uint8_t *first;
    uint32_t step, distance, count;
};

// Adds pairs of rows of so many groups, COUNT at most, each with activations of its own, which stand `x_step` bytes
// apart: of all pairs a unit before the next one, as their products do not wait for each other. What is behind the last
// pair is that one again.
template <uint32_t TYPE, uint32_t COUNT>
__device__ __forceinline__ void add_pairs(PairsOfRows pairs, uint32_t groups, const uint8_t *x, uint32_t x_step,
    const LevelWords &level_words, float (&sum)[COUNT][2]) {
    const auto add = [&](auto is_whole, uint32_t of_unit) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t own = min(i, pairs.count - 1);
            add_blocks<TYPE, 2, decltype(is_whole)::value>(
                pairs.first + own * pairs.step, pairs.distance, x + own * x_step, of_unit, level_words, sum[i]);
        }
        pairs.first += UNIT_BYTES<TYPE>, x += ROW_OF_UNIT;
    };
#pragma unroll 1
    for (; groups >= SLICE_GROUPS; groups -= SLICE_GROUPS) add(std::true_type(), SLICE_GROUPS);
    if (groups > 0) add(std::false_type(), groups);
}

// The lanes' sums of two rows with the tree of `add_neighbours`: those of the first row in even lanes, those of the
// second in odd ones.
__device__ __forceinline__ float add_two_sums(const float (&sum)[2]) {
    float total = share<1>(sum[0], sum[1]);
#pragma unroll
    for (int step = 2; step < WARP; step *= 2) total = __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, step));
    return total;
}

// The whole block for one type of weights; the matrix has a multiple of its rows.
template <uint32_t TYPE>
__device__ __forceinline__ void gemv_single_stage(const MatvecArgs &args, SingleStageStorage &own) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const Segment &segment = args.segments[0];
    const Matrix &m = segment.matrix;
    const uint32_t first = (blockIdx.x * WARPS + warp) * 2, bytes = 2 * m.row_bytes;
    const uint32_t barrier = shared_address(own.barriers + warp);
    if (elect_lane()) {
        make_barrier(barrier, 1);
        publish_barriers();
        announce(barrier, bytes);
        copy_run(shared_address(shared) + warp * bytes, m.data + (size_t)first * m.row_bytes, bytes, barrier);
    }
    __syncwarp();
    const bool has_column = lane < 2;
    const float *add = has_column && segment.adds ? segment.out + first + lane : nullptr;
    const float bias = has_column && segment.bias != nullptr ? __ldg(segment.bias + first + lane) : 0.0f;
    float residual = 0.0f;
    make_level_words<TYPE>(own.level_words);
    uint8_t *units = shared + WARPS * bytes;
    put_blocks(args, units, add, residual);
    __syncthreads();
    LevelWords level_words{};
    if constexpr (has_levels(TYPE)) level_words = own.level_words;
    wait_phase(barrier, 0);
    float sum[2] = {};
    add_two_rows<TYPE>(shared + warp * bytes, m.row_bytes, m.cols / 32, units, level_words, sum);
    float total = add_two_sums(sum);
    if (args.x.factors != nullptr) total = __fmul_rn(total, *args.x.factors);
    unsigned long long key = 0;
    if (has_column) put_sum(args, segment, segment.out, first + lane, total, bias, residual, key);
#endif
}
