// out = scale * x * matrix^T + bias, each row by the rows of its own expert, for any type of weights: a warp computes
// two outputs (gemm/dp4a.cuh) of a pair, or of the pairs of a tile, several at a time. The order of sums is that of
// every product.
#include "experts/choice.cuh"
#include "gemm/dp4a.cuh"

struct ExpertArgs {
    Activation x;
    const float *choice;
    const uint32_t *order;    // pairs by experts; null where every pair is multiplied by itself
    const ExpertTile *tiles;  // of these
    const uint32_t *count;    // how many tiles
    ExpertTable table;
    float *out;
    uint32_t chosen, width;  // experts a row, outputs
    uint32_t on_pairs;       // whether x has a row for each pair instead of each row of the batch
    uint32_t pad;
};
static_assert(sizeof(ExpertArgs) == 152, "as in args.rs");

constexpr uint32_t TILE_ROWS = WARPS * ROWS;

template <int BATCH>
__device__ __forceinline__ void multiply(const ExpertArgs &args, const Shape &shape) {
    await_then_launch();
    const uint32_t across = (args.width + TILE_ROWS - 1) / TILE_ROWS, number = blockIdx.x / across;
    ExpertTile tile{0, number, 1, 0};
    if constexpr (BATCH == 1) {
        tile.expert = expert_of(args.choice, args.chosen, number);
    } else {
        if (number >= *args.count) return;
        tile = args.tiles[number];
    }
    const uint32_t first = (blockIdx.x % across * WARPS + threadIdx.x / WARP) * ROWS;
    if (first >= args.width) return;
    uint32_t weight[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) weight[r] = row_of(args.table, tile.expert, min(first + r, args.width - 1));
    const uint32_t lane = threadIdx.x % WARP, col = first + lane % ROWS;
    for (uint32_t begin = 0; begin < tile.count; begin += BATCH) {
        const auto pair_of = [&](uint32_t n) {
            return BATCH == 1 ? number : args.order[tile.first + min(begin + n, tile.count - 1)];
        };
        uint32_t row[BATCH];
#pragma unroll
        for (int n = 0; n < BATCH; n++) row[n] = args.on_pairs ? pair_of(n) : pair_of(n) / args.chosen;
        float sum[ROWS][BATCH] = {};
        dot<BATCH>(args.x, args.table.matrix.cols, args.table.matrix, weight, row, sum);
        float mine = add_all_lanes<BATCH>(sum);
        const uint32_t n = lane / ROWS, pair = pair_of(n);
        if (args.x.factors != nullptr)
            mine = __fmul_rn(mine, args.x.factors[args.on_pairs ? pair : pair / args.chosen]);
        if (begin + n < tile.count && col < args.width && n < BATCH)
            args.out[(size_t)pair * args.width + col] =
                finish_output(args.table, tile.expert, pair, args.width, col, mine);
    }
}

// Blocks of an SM that registers leave room for: one where rows of several pairs wait, and on chips of compute
// capability 8.0, for which the unpacking of all types takes a few registers more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
constexpr int MOST_BLOCKS = 1;
#else
constexpr int MOST_BLOCKS = 2;
#endif

#define EXPERT_DP4A(family, file, name, BATCH)                                             \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH > 4 ? 1 : MOST_BLOCKS) \
        name(const __grid_constant__ ExpertArgs args, Shape shape) {                       \
        multiply<BATCH>(args, shape);                                                      \
    }
#include "kernels.def"
