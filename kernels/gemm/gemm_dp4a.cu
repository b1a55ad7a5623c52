// out = x * matrix^T (+ bias) (+ out): up to three matrices of one input in a launch, each with a storage type of its own.
//
// A warp computes ROWS outputs for BATCH rows of x. Each lane adds the groups lane, lane + 32, ... of a weight row in that order, and the tree of
// `add_neighbours` adds the lanes: an output's order of summation depends on the number of columns alone, whatever BATCH is. Products of
// quantized weights and 8-bit activations are exact integers within a group.
#include "gemm/segments.cuh"

struct MatmulArgs {
    Activation x;
    uint32_t cols, count, tiles;
    uint32_t on_outputs;  // whether x has a row for each output instead of each row of the batch
    Segment segments[3];
};
static_assert(sizeof(MatmulArgs) == 216, "as in args.rs");

constexpr int WARPS = 8;
constexpr int ROWS = 2;

template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_quantized(const MatmulArgs &args, const Matrix &m, const uint32_t (&weight)[ROWS],
                                              const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t groups = args.cols / 32, lane = threadIdx.x % WARP;
    const uint8_t *slices[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) slices[r] = m.data + (size_t)weight[r] * m.row_bytes;
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = lane; j < groups; j += SLICE_GROUPS) {
        Group g[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            g[r] = load_group<TYPE, true>(slices[r], min((uint32_t)SLICE_GROUPS, groups - (j - lane)), lane);
            slices[r] += m.slice_bytes;
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const size_t at = (size_t)row[n] * groups + j;
            const int4 *q = reinterpret_cast<const int4 *>(args.x.q) + 2 * at;
            const int4 a = q[0], b = q[1];
            const Meta meta = args.x.meta[at];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r][n] = add_group<TYPE, true>(g[r], a, b, meta, sum[r][n]);
        }
    }
}

// Rows of a multiple of 8 columns are read 8 values at a time, others one at a time.
template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_floats(const MatmulArgs &args, const Matrix &m, const uint32_t (&weight)[ROWS],
                                           const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint8_t *values[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) values[r] = m.data + (size_t)weight[r] * m.row_bytes;
    if (args.cols % 8 != 0) {
        for (uint32_t j = lane; j < args.cols; j += WARP) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float w = load_float<TYPE>(values[r], j);
#pragma unroll
                for (int n = 0; n < BATCH; n++) {
                    sum[r][n] = __fmaf_rn(w, args.x.x[(size_t)row[n] * args.cols + j], sum[r][n]);
                }
            }
        }
        return;
    }
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = 8 * lane; j < args.cols; j += 8 * WARP) {
        float w[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_floats<TYPE>(values[r] + (size_t)j * (TYPE == F32 ? 4 : 2), w[r]);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const float4 *x = reinterpret_cast<const float4 *>(args.x.x + (size_t)row[n] * args.cols + j);
            const float4 a = x[0], b = x[1];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r][n] = add_floats(w[r], a, b, sum[r][n]);
        }
    }
}

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
    by_type(m.dtype, [&](auto type) {
        constexpr int TYPE = decltype(type)::value;
        if constexpr (TYPE >= Q8_0) dot_quantized<TYPE, BATCH>(args, m, weight, row, sum);
        else dot_floats<TYPE, BATCH>(args, m, weight, row, sum);
    });
    // Lane n * ROWS + r keeps the output of weight row r and batch row n.
    float mine = 0.0f;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float total = add_neighbours(sum[r][n]);
            if (lane == n * ROWS + r) mine = total;
        }
    }
    const uint32_t out_row = slice * BATCH + lane / ROWS, out_col = first + lane % ROWS;
    if (lane >= BATCH * ROWS || out_row >= batch || out_col >= m.rows) return;
    if (args.x.factors != nullptr) mine = __fmul_rn(mine, args.x.factors[out_row]);
    float *out = segment.out + (size_t)out_row * m.rows + out_col;
    if (segment.bias != nullptr) mine = __fadd_rn(mine, segment.bias[out_col]);
    *out = segment.adds ? __fmaf_rn(segment.adds, mine, *out) : mine;
}

#define GEMM_DP4A(family, file, name, BATCH)                                                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH > 4 ? 1 : 2) name(const __grid_constant__ MatmulArgs args, Shape shape) { \
        multiply<BATCH>(args, shape);                                                                                                    \
    }
#include "kernels.def"
