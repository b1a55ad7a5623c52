// out = scale * x * matrix^T + bias, each row by the rows of its own expert, or the gated unit of two such products,
// where experts have few pairs each: a block has up to four pairs of one expert, as `expert_order` lists them, and
// some rows of its matrices, all of whose bytes are on their way at once. The sums are those of every kernel.
#include "experts/grouped.cuh"
#include "gemv/single_stage.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Pairs of a block, its weight rows, and those of a warp; of a gated unit half are of one matrix and half of the other.
constexpr uint32_t PAIRS = 4, ROWS = 64, WARP_ROWS = ROWS / WARPS, SIDE_ROWS = WARP_ROWS / 2;

struct GroupStorage {
    __align__(16) float sums[WARPS][SUM_ROWS * SUM_STRIDE];
    float outputs[PAIRS][ROWS];
    uint32_t pairs[PAIRS];
    float factors[PAIRS];
    unsigned long long barriers[WARPS];
    LevelWords level_words;
};
static_assert(PAIRS == 4 && ROWS == 64 && sizeof(GroupStorage) <= 11 << 10, "as in select/experts.rs");

// Puts the blocks of the rows of COUNT pairs where `add_unit` reads them.
template <int COUNT>
__device__ __forceinline__ void put_pairs(const ExpertGemmArgs &args, const uint32_t *pairs, uint8_t *units) {
    const uint32_t halves = args.cols / 16;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < COUNT * halves; i += blockDim.x) {
        const uint32_t n = i / halves, half = i - n * halves, group = half / 2, index = group % SLICE_GROUPS;
        const size_t row = x_row_of(args, pairs[n]), blocks = args.cols / 32;
        uint8_t *unit = units + (group / SLICE_GROUPS * COUNT + n) * ROW_OF_UNIT;
        *reinterpret_cast<int4 *>(unit + half % 2 * UPPER + index * 16) =
            reinterpret_cast<const int4 *>(args.x.q + row * args.cols)[half];
        if (half % 2 == 0)
            *reinterpret_cast<Meta *>(unit + FACTORS + index * sizeof(Meta)) = args.x.meta[row * blocks + group];
    }
}

// Adds ROUNDS pairs of weight rows, of which the first is number `first` of the warp's, and leaves the sums of lanes at
// `to`, pair by pair.
template <uint32_t TYPE, int COUNT, uint32_t ROUNDS>
__device__ __forceinline__ void add_rounds(const uint8_t *weights, uint32_t row_bytes, uint32_t cols,
    const uint8_t *units, uint32_t first, const GroupStorage &own, float *to) {
    if constexpr (COUNT == 1) {
        // Of one pair the codes are unpacked less far, and two rounds at a time do not wait for each other.
        const LevelWords level_words = own.level_words;
#pragma unroll 1
        for (uint32_t i = 0; i < ROUNDS; i += 2, to += 4 * SUM_STRIDE) {
            float sum[2][2] = {};
            add_pairs<TYPE, 2>(PairsOfRows{weights + (first + i) * row_bytes, row_bytes, SIDE_ROWS * row_bytes, 2},
                cols / 32, units, 0, level_words, sum);
            to[0] = sum[0][0], to[SUM_STRIDE] = sum[0][1], to[2 * SUM_STRIDE] = sum[1][0],
            to[3 * SUM_STRIDE] = sum[1][1];
        }
    } else {
#pragma unroll 1
        for (uint32_t i = 0; i < ROUNDS; i++, to += 2 * COUNT * SUM_STRIDE) {
            Sums<COUNT> sum = {};
            add_part<TYPE, 2, COUNT>(weights + (first + i) * row_bytes, SIDE_ROWS * row_bytes, cols,
                Input{const_cast<uint8_t *>(units), nullptr, nullptr}, 0, (cols + QUANT_COLS - 1) / QUANT_COLS, sum);
#pragma unroll
            for (int r = 0; r < 2 * COUNT; r++) to[r * SUM_STRIDE] = sum[r / 2][r % 2];
        }
    }
}

// The products of the warp's rows with COUNT pairs, to `outputs`: what stands behind a product is done, and in a gated
// unit the unit, of which there is half as much.
template <uint32_t TYPE, int COUNT>
__device__ __forceinline__ void multiply_pairs(const ExpertGemmArgs &args, const ExpertTile &tile, uint32_t first,
    uint8_t *units, const uint8_t *weights, uint32_t barrier, GroupStorage &own) {
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const bool is_gated = args.gated.x != nullptr;
    const uint32_t row_bytes = args.tables[0].matrix.row_bytes, cols = args.cols;
    put_pairs<COUNT>(args, own.pairs, units);
    __syncthreads();
    // Every four lanes finish the sum of a pair and of one of two rows, some rounds of the loop at a time.
    constexpr uint32_t ROUNDS = SUM_ROWS / (2 * COUNT);
    const uint32_t side = lane / 4 % 2, n = lane / 8 % COUNT, round = lane / 8 / COUNT;
    const uint32_t pair = own.pairs[n];
    const float factor = own.factors[n];
    const ExpertTable &table = args.tables[is_gated ? side : 0];
    wait_phase(barrier, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < SIDE_ROWS; i += ROUNDS) {
        add_rounds<TYPE, COUNT, ROUNDS>(weights, row_bytes, cols, units, i, own, own.sums[warp] + lane);
        __syncwarp();
        const uint32_t row = i + round, at = is_gated ? row : side * SIDE_ROWS + row, col = first + at;
        float v = __fmul_rn(add_lanes(own.sums[warp]), factor);
        if (col < args.width) v = finish_output(table, tile.expert, pair, args.width, col, v);
        const float up = __shfl_down_sync(ALL_LANES, v, 4);
        if (is_gated && lane % 8 == 0) own.outputs[n][warp * SIDE_ROWS + at] = args.unit(v, up);
        if (!is_gated && lane % 4 == 0) own.outputs[n][warp * WARP_ROWS + at] = v;
        __syncwarp();
    }
    __syncthreads();
}

template <uint32_t TYPE>
__device__ __forceinline__ void multiply_group(const ExpertGemmArgs &args, GroupStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const bool is_gated = args.gated.x != nullptr;
    const ExpertTable &lower = args.tables[0], &upper = args.tables[is_gated];
    const uint32_t outputs = is_gated ? ROWS / 2 : ROWS, across = (args.width + outputs - 1) / outputs;
    const uint32_t index = blockIdx.x / across, tile_first = blockIdx.x % across * outputs;
    const uint32_t row_bytes = lower.matrix.row_bytes, bytes = SIDE_ROWS * row_bytes,
                   barrier = shared_address(own.barriers + warp);
    const uint32_t first = tile_first + warp * (is_gated ? SIDE_ROWS : WARP_ROWS);
    if (elect_lane()) make_barrier(barrier, 1), publish_barriers();
    make_level_words<TYPE>(own.level_words);
    __syncwarp();
    // All blocks of a launch of the same pairs have waited for these when this one begins.
    if (!args.is_early) await_dependencies();
    if (index >= __ldcg(args.count)) return launch_dependents();
    const uint4 listed = __ldcg(reinterpret_cast<const uint4 *>(args.tiles + index));
    const ExpertTile tile{listed.x, listed.y, listed.z, 0};
    const uint8_t *weights = shared + warp * 2 * bytes;
    if (elect_lane()) {
        // Rows behind the last one are not read.
        const uint32_t near = min(SIDE_ROWS, args.width - min(args.width, first)) * row_bytes;
        const uint32_t second = is_gated ? first : first + SIDE_ROWS;
        const uint32_t far = min(SIDE_ROWS, args.width - min(args.width, second)) * row_bytes;
        announce(barrier, near + far);
        if (near > 0)
            copy_run(shared_address(weights), lower.matrix.data + (size_t)row_of(lower, tile.expert, first) * row_bytes,
                near, barrier);
        if (far > 0)
            copy_run(shared_address(weights) + bytes,
                upper.matrix.data + (size_t)row_of(upper, tile.expert, second) * row_bytes, far, barrier);
    }
    __syncwarp();
    if (args.is_early) await_dependencies();
    launch_dependents();
    if (threadIdx.x < PAIRS) {
        const uint32_t pair = args.order[tile.first + min(threadIdx.x, tile.count - 1)];
        own.pairs[threadIdx.x] = pair;
        own.factors[threadIdx.x] = args.x.factors != nullptr ? args.x.factors[x_row_of(args, pair)] : 1.0f;
    }
    __syncthreads();
    uint8_t *units = shared + WARPS * 2 * bytes;
    if (tile.count == 1) multiply_pairs<TYPE, 1>(args, tile, first, units, weights, barrier, own);
    else if (tile.count == 2) multiply_pairs<TYPE, 2>(args, tile, first, units, weights, barrier, own);
    else multiply_pairs<TYPE, 4>(args, tile, first, units, weights, barrier, own);
    if (is_gated) {
        if (warp < tile.count)
            emit_blocks(args.gated, own.pairs[warp], tile_first + lane, args.width, own.outputs[warp][lane]);
        return;
    }
    for (uint32_t i = threadIdx.x; i < tile.count * ROWS; i += blockDim.x) {
        const uint32_t n = i / ROWS, col = tile_first + i % ROWS;
        if (col < args.width) args.out[(size_t)own.pairs[n] * args.width + col] = own.outputs[n][i % ROWS];
    }
}

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
#define EXPERT_GROUPED_GEMV(family, file, name, TYPE)                               \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, TYPE == Q8_0 ? 2 : 3) \
        name(const __grid_constant__ ExpertGemmArgs args, Shape) {                  \
        __shared__ GroupStorage space;                                              \
        multiply_group<TYPE>(args, space);                                          \
    }
#else
#define EXPERT_GROUPED_GEMV(family, file, name, TYPE) \
    extern "C" __global__ void name(const __grid_constant__ ExpertGemmArgs, Shape) {}
#endif
#include "kernels.def"
