// An RMS norm, the product of its result with a router's matrix of floats, and the choice of experts by that, for steps
// of few rows: one launch in place of three. The gate of the expert that every row has counts as one more of them. Some
// blocks a row, of which each norms the row and makes the logits of some experts; the first one writes the norm's
// result for other products, the last one to end chooses. The bits are those of `rms_norm`, of the products, and of
// `route`.
#include "elementwise/rms_norm.cuh"
#include "experts/route.cuh"
#include "quant/unpack.cuh"

struct RouterArgs {
    const float *x, *weight;  // of the norm
    Activation out;           // its result, for products
    Matrix matrix;
    const float *bias;  // of the logits; null for none
    float *logits;
    uint32_t *arrived;  // blocks of each row that have ended; 0 before and after
    float eps;
    uint32_t width;
    Matrix gate;      // of one row, whose product is left too; no data for none
    float *gate_out;  // an element for each row
    RouteArgs route;
};
static_assert(sizeof(RouterArgs) == 208, "as in args.rs");

static_assert(NORM_THREADS == ROUTE_THREADS, "a block does both");
// Steps of a product whose weights are loaded before the block waits for its producers.
constexpr uint32_t EARLY = 8, STEP_COLS = 8 * WARP;

// The product of the block's row, which is in shared memory, with a row of the matrix.
template <int TYPE>
struct RowProduct {
    static constexpr uint32_t SIZE = TYPE == F32 ? 4 : 2;
    const uint8_t *row;
    float early[EARLY][8];

    __device__ __forceinline__ RowProduct(const Matrix &m, const Matrix &gate, uint32_t expert)
        : row(expert == m.rows && gate.data != nullptr ? gate.data
                                                       : m.data + (size_t)min(expert, m.rows - 1) * m.row_bytes) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t i = 0; i < EARLY; i++) {
            if (i * STEP_COLS + 8 * lane < m.cols) load_floats<TYPE>(row + (i * STEP_COLS + 8 * lane) * SIZE, early[i]);
        }
    }

    __device__ __forceinline__ float with(const float *x, uint32_t cols) const {
        const uint32_t lane = threadIdx.x % WARP;
        float sum = 0.0f;
        const auto add = [&](uint32_t col, const float (&w)[8]) {
            const float4 *values = reinterpret_cast<const float4 *>(x + col);
            sum = add_floats(w, values[0], values[1], sum);
        };
#pragma unroll
        for (uint32_t i = 0; i < EARLY; i++) {
            if (i * STEP_COLS + 8 * lane < cols) add(i * STEP_COLS + 8 * lane, early[i]);
        }
        for (uint32_t col = EARLY * STEP_COLS + 8 * lane; col < cols; col += STEP_COLS) {
            float w[8];
            load_floats<TYPE>(row + col * SIZE, w);
            add(col, w);
        }
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
        return sum;
    }
};

// Norms the block's row into shared memory; its factor.
__device__ __forceinline__ float norm_row(const RouterArgs &args, float *normed, float *shares) {
    const uint32_t row = blockIdx.y, quads = args.width / 4;
    weigh_row(reinterpret_cast<const float4 *>(args.x + (size_t)row * args.width),
        reinterpret_cast<const float4 *>(args.weight), quads, shares, [&](uint32_t quad, const float4 &v) {
            if (quad < quads) reinterpret_cast<float4 *>(normed)[quad] = v;
            if (blockIdx.x == 0) emit_quad<true>(args.out, row, quad, args.width, quad < quads, v);
        });
    __syncthreads();
    const float factor = norm_factor(shares, args.width, args.eps);
    if (blockIdx.x == 0 && threadIdx.x == 0) args.out.factors[row] = factor;
    return factor;
}

// Whether this block is the last one of its row that comes here.
__device__ __forceinline__ bool is_last_block(uint32_t *arrived) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrived, 1) + 1 == gridDim.x;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

template <int TYPE>
__device__ __forceinline__ void route_rows(const RouterArgs &args) {
    extern __shared__ __align__(16) float normed[];
    __shared__ float shares[ROUTE_WARPS];
    __shared__ RouteStorage space;
    const uint32_t row = blockIdx.y, expert = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
    const RowProduct<TYPE> product(args.matrix, args.gate, expert);
    const float factor = norm_row(args, normed, shares);
    float *logits = args.logits + (size_t)row * args.matrix.rows;
    float v = __fmul_rn(product.with(normed, args.width), factor);
    if (threadIdx.x % WARP == 0 && expert < args.matrix.rows)
        logits[expert] = args.bias != nullptr ? __fadd_rn(v, args.bias[expert]) : v;
    if (threadIdx.x % WARP == 0 && expert == args.matrix.rows && args.gate.data != nullptr) args.gate_out[row] = v;
    if (!is_last_block(args.arrived + row)) return;
    for (uint32_t i = threadIdx.x; i < args.matrix.rows; i += ROUTE_THREADS) normed[i] = __ldcg(logits + i);
    __syncthreads();
    choose_experts(args.route, normed, row, space);
}

#define ROUTER(family, file, name, TYPE)                                                                               \
    extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) name(const __grid_constant__ RouterArgs args, Shape) { \
        route_rows<TYPE>(args);                                                                                        \
    }
#include "kernels.def"
