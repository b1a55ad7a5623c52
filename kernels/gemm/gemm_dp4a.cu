// out = x * matrix^T (+ bias) (+ out): up to three matrices of one input in a launch, each with a storage type of its
// own.
//
// A warp computes ROWS outputs for BATCH rows of x (dp4a.cuh).
#include "gemm/dp4a.cuh"

struct MatmulArgs {
    Activation x;
    uint32_t cols, count, tiles;
    uint32_t on_outputs;  // whether x has a row for each output instead of each row of the batch
    Segment segments[3];
};
static_assert(sizeof(MatmulArgs) == 216, "as in args.rs");

template <int BATCH>
__device__ __forceinline__ void multiply(const MatmulArgs &args, const Shape &shape) {
    await_then_launch();
    const uint32_t batch = args.on_outputs ? shape.outputs : shape.rows;
    // Blocks that share a tile of weights run side by side, so that it comes from memory once.
    const uint32_t slices = (batch + BATCH - 1) / BATCH, slice = blockIdx.x % slices, tile = blockIdx.x / slices;
    const Segment &segment = args.segments[segment_of(args.segments, args.count, tile)];
    const Matrix &m = segment.matrix;
    const uint32_t first = ((tile - segment.first_tile) * WARPS + threadIdx.x / WARP) * ROWS;
    if (first >= m.rows) return;
    uint32_t weight[ROWS], row[BATCH];
#pragma unroll
    for (int r = 0; r < ROWS; r++) weight[r] = min(first + r, m.rows - 1);
#pragma unroll
    for (int n = 0; n < BATCH; n++) row[n] = min(slice * BATCH + n, batch - 1);
    float sum[ROWS][BATCH] = {};
    dot<BATCH>(args.x, args.cols, m, weight, row, sum);
    float mine = add_all_lanes<BATCH>(sum);
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t out_row = slice * BATCH + lane / ROWS, out_col = first + lane % ROWS;
    if (lane >= BATCH * ROWS || out_row >= batch || out_col >= m.rows) return;
    if (args.x.factors != nullptr) mine = __fmul_rn(mine, args.x.factors[out_row]);
    float *out = segment.out + (size_t)out_row * m.rows + out_col;
    if (segment.bias != nullptr) mine = __fadd_rn(mine, segment.bias[out_col]);
    *out = segment.adds ? __fmaf_rn(segment.adds, mine, *out) : mine;
}

#define GEMM_DP4A(family, file, name, BATCH)                                     \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH > 4 ? 1 : 2) \
        name(const __grid_constant__ MatmulArgs args, Shape shape) {             \
        multiply<BATCH>(args, shape);                                            \
    }
#include "kernels.def"
