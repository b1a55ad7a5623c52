// out = x * matrix^T, some elements of each head of a row by rows of the head's own, for any type of weights: what
// latent attention does with queries, and with the vectors that it has mixed. Blocks share the outputs of a head; each
// brings BATCH rows of it to shared memory, for quantized weights as 8-bit blocks. In a warp as many outputs are
// computed side by side as the lanes of one leave room for.
//
// A lane has one group of a quantized row, or every 32nd part of a row of floats, and the lanes of an output are added
// as in every multiplication: the order of sums depends on the number of columns alone.
#include "gemm/segments.cuh"
#include "quant/activation.cuh"

struct HeadMatmulArgs {
    const float *x;
    float *out;
    Matrix matrix;                // of all heads, the rows of one behind those of the other
    uint32_t heads, each, first;  // elements of a head of `x`, and the first that is multiplied
    uint32_t width;               // outputs of a head
    uint32_t on_outputs;          // whether x has a row for each output instead of each row of the batch
    uint32_t pad;
};
static_assert(sizeof(HeadMatmulArgs) == 72, "as in args.rs");

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

template <int BATCH>
__device__ __forceinline__ void multiply(const HeadMatmulArgs &args, const Shape &shape) {
    __shared__ HeadRows<BATCH> rows;
    const Matrix &m = args.matrix;
    const bool is_quantized = m.dtype >= Q8_0;
    const uint32_t head = blockIdx.y, cols = m.cols, groups = cols / WARP;
    // Lanes of an output, a power of two.
    const uint32_t lanes = !is_quantized ? WARP : groups == 1 ? 1 : 1u << (WARP - __clz(groups - 1));
    await_then_launch();
    const uint32_t batch = args.on_outputs ? shape.outputs : shape.rows, first_row = blockIdx.z * BATCH;
    const auto element = [&](uint32_t n, uint32_t col) {
        const size_t row = min(first_row + n, batch - 1);
        return args.x[(row * args.heads + head) * args.each + args.first + col];
    };
    if (is_quantized) rows.put_codes(cols, element);
    else rows.put_floats(cols, element);
    __syncthreads();
    const uint32_t own = threadIdx.x % lanes, tile_rows = WARPS * WARP / lanes;
    // Whole warps stay, as their lanes are added.
    for (uint32_t tile = blockIdx.x * tile_rows; tile < args.width; tile += gridDim.x * tile_rows) {
        const uint32_t col = tile + threadIdx.x / lanes, row = head * args.width + min(col, args.width - 1);
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
            const size_t out_row = first_row + n;
            if (own == n % lanes && out_row < batch && col < args.width)
                args.out[(out_row * args.heads + head) * args.width + col] = sum[n];
        }
    }
}

#define HEAD_MATMUL(family, file, name, BATCH)                                   \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH > 4 ? 1 : 2) \
        name(const __grid_constant__ HeadMatmulArgs args, Shape shape) {         \
        multiply<BATCH>(args, shape);                                            \
    }
#include "kernels.def"
