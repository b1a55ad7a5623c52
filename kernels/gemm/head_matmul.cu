// out = x * matrix^T, some elements of each head of a row by rows of the head's own, for any type of weights: what
// latent attention does with queries, and with the vectors that it has mixed. Blocks share the outputs of a head; each
// brings BATCH rows of it to shared memory, for quantized weights as 8-bit blocks. In a warp as many outputs are
// computed side by side as the lanes of one leave room for.
//
// Elements of a head that stay as they are may go before its outputs: heads put together take no launch of their own.
//
// A lane has one group of a quantized row, or every 32nd part of a row of floats, and the lanes of an output are added
// as in every multiplication: the order of sums depends on the number of columns alone.
#include "gemm/segments.cuh"
#include "quant/activation.cuh"

struct HeadMatmulArgs {
    const float *x;
    Activation out;               // with 8-bit blocks where heads have whole ones
    Matrix matrix;                // of all heads, the rows of one behind those of the other
    uint32_t heads, each, first;  // elements of a head of `x`, and the first that is multiplied
    uint32_t width;               // outputs of a head
    uint32_t kept_first, kept;  // elements of a head that stand before its outputs as they are: the first, and how many
    uint32_t on_outputs;        // whether x has a row for each output instead of each row of the batch
    uint32_t pad;
};
static_assert(sizeof(HeadMatmulArgs) == 104, "as in args.rs");

constexpr int WARPS = 8;
// Most columns of the matrix: a quantized row is one slice.
constexpr uint32_t MOST_COLS = 512;
static_assert(MOST_COLS / WARP <= WARP && MOST_COLS / WARP <= SLICE_GROUPS, "a lane a group");

// Elements of a head in shared memory, of BATCH rows.
template <int BATCH>
struct HeadRows {
    __align__(16) float x[BATCH][MOST_COLS];
    __align__(16) int8_t codes[BATCH][MOST_COLS];
    Meta meta[BATCH][MOST_COLS / WARP];

    // `element(n, col)` is that of row n.
    template <typename F>
    __device__ __forceinline__ void put_floats(uint32_t cols, const F &element) {
        for (uint32_t i = threadIdx.x; i < BATCH * cols; i += WARPS * WARP)
            x[i / cols][i % cols] = element(i / cols, i % cols);
    }
    template <typename F>
    __device__ __forceinline__ void put_codes(uint32_t cols, const F &element) {
        const uint32_t groups = cols / WARP, lane = threadIdx.x % WARP;
        for (uint32_t i = threadIdx.x / WARP; i < BATCH * groups; i += WARPS) {
            const uint32_t n = i / groups, group = i % groups, col = group * WARP + lane;
            Meta own;
            codes[n][col] = encode_lane(element(n, col), own);
            if (lane == 0) meta[n][group] = own;
        }
    }
};

template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_codes(
    const HeadRows<BATCH> &rows, const uint8_t *weights, uint32_t cols, uint32_t own, float (&sum)[BATCH]) {
    if (own >= cols / WARP) return;
    const Group g = load_group<TYPE, true>(weights, cols / WARP, own);
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
        const int4 *codes = reinterpret_cast<const int4 *>(rows.codes[n]) + 2 * own;
        sum[n] = add_group<TYPE, true>(g, codes[0], codes[1], rows.meta[n][own], 0.0f);
    }
}

// Rows of a multiple of 8 columns are read 8 values at a time, others one at a time.
template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_elements(
    const HeadRows<BATCH> &rows, const uint8_t *weights, uint32_t cols, uint32_t own, float (&sum)[BATCH]) {
    if (cols % 8 != 0) {
        for (uint32_t j = own; j < cols; j += WARP) {
            const float w = load_float<TYPE>(weights, j);
#pragma unroll
            for (int n = 0; n < BATCH; n++) sum[n] = __fmaf_rn(w, rows.x[n][j], sum[n]);
        }
        return;
    }
    for (uint32_t j = 8 * own; j < cols; j += 8 * WARP) {
        float w[8];
        load_floats<TYPE>(weights + (size_t)j * (TYPE == F32 ? 4 : 2), w);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const float4 *x = reinterpret_cast<const float4 *>(rows.x[n] + j);
            sum[n] = add_floats(w, x[0], x[1], sum[n]);
        }
    }
}

// Outputs of a head that a block has at a time: as many as its warps compute at once, and whole 8-bit blocks.
template <int BATCH>
using Results = float[BATCH][WARPS * WARP];

// Writes the results of `count` outputs from `tile` on; by whole warps.
template <int BATCH>
__device__ __forceinline__ void put_results(const HeadMatmulArgs &args, const Results<BATCH> &results, uint32_t head,
    uint32_t first_row, uint32_t batch, uint32_t tile, uint32_t count) {
    const uint32_t out_each = args.kept + args.width;
    for (uint32_t i = threadIdx.x; i < BATCH * count; i += WARPS * WARP) {
        const uint32_t n = i / count, row = first_row + n, col = tile + i % count;
        if (row >= batch || col / WARP * WARP >= args.width) continue;
        const float v = results[n][i % count];
        if (args.out.q != nullptr) emit_blocks(args.out, row, head * args.width + col, args.heads * args.width, v);
        else if (col < args.width) args.out.x[((size_t)row * args.heads + head) * out_each + args.kept + col] = v;
    }
}

template <int BATCH>
__device__ __forceinline__ void multiply(const HeadMatmulArgs &args, const Shape &shape) {
    __shared__ HeadRows<BATCH> rows;
    __shared__ Results<BATCH> results;
    const Matrix &m = args.matrix;
    const bool is_quantized = m.dtype >= Q8_0;
    const uint32_t head = blockIdx.y, cols = m.cols, groups = cols / WARP;
    // Lanes of an output, a power of two.
    const uint32_t lanes = !is_quantized ? WARP : groups == 1 ? 1 : 1u << (WARP - __clz(groups - 1));
    await_then_launch();
    const uint32_t batch = args.on_outputs ? shape.outputs : shape.rows, first_row = blockIdx.z * BATCH;
    const auto head_of = [&](uint32_t n) {
        const size_t row = min(first_row + n, batch - 1);
        return args.x + (row * args.heads + head) * args.each;
    };
    const auto element = [&](uint32_t n, uint32_t col) { return head_of(n)[args.first + col]; };
    if (is_quantized) rows.put_codes(cols, element);
    else rows.put_floats(cols, element);
    if (blockIdx.x == 0) {
        for (uint32_t i = threadIdx.x; i < BATCH * args.kept; i += WARPS * WARP) {
            const uint32_t n = i / args.kept, at = i % args.kept, row = first_row + n;
            if (row < batch)
                args.out.x[((size_t)row * args.heads + head) * (args.kept + args.width) + at] =
                    head_of(n)[args.kept_first + at];
        }
    }
    __syncthreads();
    const uint32_t own = threadIdx.x % lanes, at_once = WARPS * WARP / lanes, tile_cols = max(at_once, (uint32_t)WARP);
    // Whole warps stay, as their lanes are added.
    for (uint32_t tile = blockIdx.x * tile_cols; tile < args.width; tile += gridDim.x * tile_cols) {
        for (uint32_t start = 0; start < tile_cols; start += at_once) {
            const uint32_t local = start + threadIdx.x / lanes,
                           row = head * args.width + min(tile + local, args.width - 1);
            const uint8_t *weights = m.data + (size_t)row * m.row_bytes;
            float sum[BATCH] = {};
            by_type(m.dtype, [&](auto type) {
                constexpr int TYPE = decltype(type)::value;
                if constexpr (TYPE >= Q8_0) dot_codes<TYPE, BATCH>(rows, weights, cols, own, sum);
                else dot_elements<TYPE, BATCH>(rows, weights, cols, own, sum);
            });
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                for (uint32_t step = 1; step < lanes; step *= 2)
                    sum[n] = __fadd_rn(sum[n], __shfl_xor_sync(ALL_LANES, sum[n], step));
                if (own == n % lanes) results[n][local] = sum[n];
            }
        }
        __syncthreads();
        put_results<BATCH>(args, results, head, first_row, batch, tile, tile_cols);
        __syncthreads();
    }
}

#define HEAD_MATMUL(family, file, name, BATCH)                                   \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH > 4 ? 1 : 2) \
        name(const __grid_constant__ HeadMatmulArgs args, Shape shape) {         \
        multiply<BATCH>(args, shape);                                            \
    }
#include "kernels.def"
