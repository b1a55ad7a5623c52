// out = scale * x * matrix^T + bias, each row by the rows of its own expert, or the gated unit of two such products,
// where experts have few pairs each, on integer matrix instructions.
//
// A block stays and takes every so many of all works: a tile of up to four pairs of one expert, and 64 rows of its
// matrices. A warp has eight of these, in a gated unit four of either matrix, and asks for those of a work to come as
// soon as it has multiplied others; one warp more brings activations and makes outputs of sums. The sums are those of
// every kernel.
#include "experts/grouped_rows.cuh"
#include "experts/pair_tiles.cuh"

#include <type_traits>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Warps that multiply, weight rows of half of one, and of a block; the number of the warp that helps them.
constexpr uint32_t GROUP_WARPS = 8, HALF_ROWS = 4, ROWS = GROUP_WARPS * 2 * HALF_ROWS, HELPER = GROUP_WARPS,
                   GROUP_THREADS = (HELPER + 1) * WARP;
// Works whose weights may be on their way, and warps of a block that ask for the first ones at a time.
constexpr uint32_t MOST_WORKS_AHEAD = 4, FIRST_WARPS = 5;
// Works whose activations and sums have a place.
constexpr uint32_t BUFFERS = 3;

struct GroupStorage {
    PairTiles tiles;
    float sums[BUFFERS][PAIRS][ROWS];
    unsigned long long weights[GROUP_WARPS][MOST_WORKS_AHEAD], x[BUFFERS], done[BUFFERS], begun[GROUP_WARPS];
};
static_assert(PAIRS == 4 && ROWS == 64 && HALF_ROWS == 4 && GROUP_THREADS == 288 && BUFFERS == 3 && ROW_PAD == 16 &&
        MOST_WORKS_AHEAD == 4 && MOST_TILES == 128 && MOST_SORTED == 128 && sizeof(GroupStorage) <= 7 << 10,
    "as in select/experts.rs");

// How a launch is divided, and shared addresses.
struct GroupPlan {
    const ExpertGemmArgs &args;
    uint32_t warp, outputs, across;    // outputs of a work, works of a tile
    uint32_t tiles_on, parts_on;       // to the block's next work
    uint32_t row_bytes, half_bytes;    // of half of a warp's rows: those of the other half have other banks
    uint32_t x_stride, meta, x_bytes;  // rows of x; their factors; all of a tile
    uint32_t stage_bytes, stages, weights, x;
    // Barriers: of the warp's stages, of the buffers' activations, of their products, and of a warp's first rows.
    uint32_t full, x_full, done, begun;

    __device__ __forceinline__ GroupPlan(const ExpertGemmArgs &args, uint32_t shared, const GroupStorage &own)
        : args(args), warp(warp_number()) {
        outputs = is_gated() ? ROWS / 2 : ROWS, across = (args.width + outputs - 1) / outputs;
        tiles_on = gridDim.x / across, parts_on = gridDim.x - tiles_on * across;
        row_bytes = args.tables[0].matrix.row_bytes;
        half_bytes = (HALF_ROWS * row_bytes + 63) / 128 * 128 + 64, stage_bytes = ROWS / HALF_ROWS * half_bytes;
        x_stride = args.cols + ROW_PAD, meta = PAIRS * x_stride, x_bytes = meta + PAIRS * (args.cols / 4);
        uint32_t bytes;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
        stages = min(MOST_WORKS_AHEAD, (bytes - BUFFERS * x_bytes) / stage_bytes);
        x = shared, weights = shared + BUFFERS * x_bytes + warp * 2 * half_bytes;
        full = shared_address(own.weights[warp]), x_full = shared_address(own.x), done = shared_address(own.done),
        begun = shared_address(own.begun);
    }
    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    // The first output of a half of the warp's rows in a work whose first one is `first`.
    __device__ __forceinline__ uint32_t first_of_half(uint32_t first, uint32_t half) const {
        return first + (is_gated() ? warp : 2 * warp + half) * HALF_ROWS;
    }
};

// A work of the block, number `index` of its own: part `part` of a tile.
struct Work {
    uint32_t index = 0, tile, part;

    __device__ __forceinline__ explicit Work(const GroupPlan &plan) {
        tile = blockIdx.x / plan.across, part = blockIdx.x - tile * plan.across;
    }
    __device__ __forceinline__ void advance(const GroupPlan &plan) {
        index++, tile += plan.tiles_on, part += plan.parts_on;
        if (part >= plan.across) part -= plan.across, tile++;
    }
};

// Asks for the warp's rows of a work; rows behind the last one are not read.
__device__ __forceinline__ void ask_for_rows(
    const GroupPlan &plan, uint32_t first, uint32_t expert, uint32_t stage, uint32_t barrier) {
    const ExpertGemmArgs &args = plan.args;
    if (elect_lane()) {
        uint32_t bytes[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            bytes[i] = min(HALF_ROWS, args.width - min(args.width, plan.first_of_half(first, i))) * plan.row_bytes;
        announce(barrier, bytes[0] + bytes[1]);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const ExpertTable &table = args.tables[plan.is_gated() ? i : 0];
            const size_t row = row_of(table, expert, plan.first_of_half(first, i));
            if (bytes[i] > 0) {
                copy_run(plan.weights + stage * plan.stage_bytes + i * plan.half_bytes,
                    table.matrix.data + row * plan.row_bytes, bytes[i], barrier);
            }
        }
    }
    __syncwarp();
}

// Asks for the activations of a tile.
__device__ __forceinline__ void ask_for_columns(
    const GroupPlan &plan, const PairTile &tile, uint32_t buffer, uint32_t barrier) {
    const ExpertGemmArgs &args = plan.args;
    const uint32_t to = plan.x + buffer * plan.x_bytes, groups = args.cols / 32,
                   meta_bytes = groups * (uint32_t)sizeof(Meta);
    if (elect_lane()) {
        announce(barrier, tile.count * (args.cols + meta_bytes));
        for (uint32_t n = 0; n < tile.count; n++) {
            const size_t row = tile.rows[n];
            copy_written(to + n * plan.x_stride, args.x.q + row * args.cols, args.cols, barrier);
            copy_written(to + plan.meta + n * meta_bytes, args.x.meta + row * groups, meta_bytes, barrier);
        }
    }
    __syncwarp();
}

// What stands behind the products of a work with pair n of its tile, whose sums are at `sums`: the outputs, or those of
// a gated unit. By a whole warp.
__device__ __forceinline__ void finish_pair(
    const GroupPlan &plan, const PairTile &tile, uint32_t n, uint32_t first, const float (&sums)[ROWS]) {
    const ExpertGemmArgs &args = plan.args;
    const uint32_t lane = threadIdx.x % WARP, pair = tile.pairs[n];
    const float factor = args.x.factors != nullptr ? args.x.factors[tile.rows[n]] : 1.0f;
    const auto finish = [&](const ExpertTable &table, uint32_t at, uint32_t col) {
        return finish_output(table, tile.expert, pair, args.width, col, __fmul_rn(sums[at], factor));
    };
    if (plan.is_gated()) {
        const float gate = finish(args.tables[0], lane, first + lane),
                    up = finish(args.tables[1], WARP + lane, first + lane);
        return emit_blocks(args.gated, pair, first + lane, args.width, args.unit(gate, up));
    }
#pragma unroll
    for (uint32_t at = lane; at < ROWS; at += WARP) {
        if (first + at < args.width)
            args.out[(size_t)pair * args.width + first + at] = finish(args.tables[0], at, first + at);
    }
}

// The works of a block.
struct Works {
    const GroupPlan &plan;
    GroupStorage &own;
    bool sorts;
    uint32_t count;

    __device__ __forceinline__ const PairTile &tile_of(const Work &work) const {
        return own.tiles.tiles[sorts ? work.tile : work.index];
    }
    __device__ __forceinline__ void ask_for_rows_of(const Work &work, uint32_t stage) const {
        if (work.index < count)
            ask_for_rows(plan, work.part * plan.outputs, tile_of(work).expert, stage, plan.full + 8 * stage);
    }
    __device__ __forceinline__ void ask_for_x_of(const Work &work, uint32_t buffer) const {
        if (work.index < count) ask_for_columns(plan, tile_of(work), buffer, plan.x_full + 8 * buffer);
    }
};

// A warp's products of all works. `ahead` is the first work whose rows are not asked for.
template <int TYPE>
__device__ __forceinline__ void multiply_works(const Works &works, Work ahead) {
    const GroupPlan &plan = works.plan;
    GroupStorage &own = works.own;
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4, half = lane / 4 % 2, row = lane / 8;
    uint32_t lane_row = plan.weights + half * plan.half_bytes + row * plan.row_bytes;
    // Where the sums of the lane's row go.
    uint32_t place = shared_address(own.sums) + 4 * (plan.first_of_half(plan.is_gated() ? half * WARP : 0, half) + row);
    keep(lane_row), keep(place);
    const auto places_of = [&](uint32_t stage, uint32_t buffer) {
        const uint32_t x = plan.x + buffer * plan.x_bytes;
        return RowPlaces{
            lane_row + stage * plan.stage_bytes, x + (half * 4 + t) * 32, x + plan.meta + t * (uint32_t)sizeof(Meta)};
    };
    PipelineState weights, x;
    Work work(plan);
#pragma unroll 1
    for (; work.index < works.count; work.advance(plan)) {
        const PairTile &tile = works.tile_of(work);
        wait_phase(plan.x_full + 8 * x.stage, x.parity);
        wait_phase(plan.full + 8 * weights.stage, weights.parity);
        if (work.index == 0 && elect_lane()) arrive(plan.begun + 8 * plan.warp);
        const auto multiply = [&](auto pairs) {
            constexpr uint32_t COUNT = decltype(pairs)::value;
            float sums[(COUNT + 1) / 2];
            multiply_row<TYPE, COUNT>(plan.args.tables[0].matrix, places_of(weights.stage, x.stage), sums);
            const uint32_t n = COUNT == 1 ? 0 : lane / 2 % 2;
#pragma unroll
            for (uint32_t i = 0; i < (COUNT + 1) / 2; i++) {
                if (lane % (COUNT == 1 ? 4 : 2) == 0)
                    store_shared(place + 4 * ROWS * (x.stage * PAIRS + 2 * i + n), sums[i]);
            }
        };
        if (tile.count == 1) multiply(std::integral_constant<uint32_t, 1>());
        else if (tile.count == 2) multiply(std::integral_constant<uint32_t, 2>());
        else multiply(std::integral_constant<uint32_t, 4>());
        __syncwarp();
        works.ask_for_rows_of(ahead, weights.stage), ahead.advance(plan);
        __syncwarp();
        if (elect_lane()) arrive(plan.done + 8 * x.stage);
        weights.skip(1, plan.stages), x.skip(1, BUFFERS);
    }
}

// What the helper does: makes outputs of sums, and brings the activations of a later work to the place of those
// that are done.
__device__ __forceinline__ void help(const Works &works) {
    const GroupPlan &plan = works.plan;
    GroupStorage &own = works.own;
    Work work(plan), ahead = work;
#pragma unroll 1
    for (uint32_t i = 0; i < BUFFERS; i++) works.ask_for_x_of(ahead, i), ahead.advance(plan);
    PipelineState turn;
#pragma unroll 1
    for (; work.index < works.count; work.advance(plan)) {
        wait_phase(plan.done + 8 * turn.stage, turn.parity);
        const PairTile &tile = works.tile_of(work);
        for (uint32_t n = 0; n < tile.count; n++)
            finish_pair(plan, tile, n, work.part * plan.outputs, own.sums[turn.stage][n]);
        __syncwarp();
        works.ask_for_x_of(ahead, turn.stage), ahead.advance(plan);
        turn.skip(1, BUFFERS);
    }
}

template <uint32_t TYPE>
__device__ __forceinline__ void multiply_group(const ExpertGemmArgs &args, const Shape &shape, GroupStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const GroupPlan plan(args, shared_address(shared), own);
    if (elect_lane()) {
        for (uint32_t i = 0; plan.warp < HELPER && i < plan.stages; i++) make_barrier(plan.full + 8 * i, 1);
        if (plan.warp < HELPER) make_barrier(plan.begun + 8 * plan.warp, 1);
        for (uint32_t i = 0; plan.warp == HELPER && i < BUFFERS; i++)
            make_barrier(plan.x_full + 8 * i, 1), make_barrier(plan.done + 8 * i, GROUP_WARPS);
        publish_barriers();
    }
    // All blocks of a launch of the same pairs have waited for these when this one begins.
    if (!args.is_early) await_dependencies();
    const bool sorts = args.choice != nullptr;
    const uint32_t tiles = sorts
        ? sort_pairs(args, shape.rows * args.chosen, reinterpret_cast<uint32_t *>(shared), own.tiles)
        : __ldcg(args.count);
    const uint32_t all = tiles * plan.across;
    if (blockIdx.x >= all) return launch_dependents();
    const Works works{plan, own, sorts, (all - blockIdx.x + gridDim.x - 1) / gridDim.x};
    if (!sorts) fetch_tiles(args, works.count, plan.across, own.tiles);
    const bool helps = plan.warp == HELPER;
    Work ahead(plan);
    if (args.is_early) {
        for (uint32_t i = 0; !helps && i < plan.stages; i++) works.ask_for_rows_of(ahead, i), ahead.advance(plan);
        await_dependencies();
    }
    launch_dependents();
    if (helps) return help(works);
    if (!args.is_early) {
        // A warp's rows come before those of the next ones, so that it can begin.
        if (plan.warp >= FIRST_WARPS) wait_phase(plan.begun + 8 * (plan.warp - FIRST_WARPS), 0);
        for (uint32_t i = 0; i < plan.stages; i++) works.ask_for_rows_of(ahead, i), ahead.advance(plan);
    }
    multiply_works<TYPE>(works, ahead);
}

// Blocks of an SM: from compute capability 10.0 on some of these kernels need more registers than two of them have, and
// from 12.0 on an SM has no shared memory for two.
template <uint32_t TYPE>
constexpr uint32_t RESIDENT_BLOCKS =
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
    1;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    TYPE == Q8_0 ? 1 : 2;
#else
    2;
#endif

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
#define EXPERT_GROUPED_GEMV(family, file, name, TYPE)                                  \
    extern "C" __global__ void __launch_bounds__(GROUP_THREADS, RESIDENT_BLOCKS<TYPE>) \
        name(const __grid_constant__ ExpertGemmArgs args, Shape shape) {               \
        __shared__ GroupStorage space;                                                 \
        multiply_group<TYPE>(args, shape, space);                                      \
    }
#else
#define EXPERT_GROUPED_GEMV(family, file, name, TYPE) \
    extern "C" __global__ void name(const __grid_constant__ ExpertGemmArgs, Shape) {}
#endif
#include "kernels.def"
