// RMS norm of rows, by one block a row or by several, for products alone: it writes weighted values in the form that
// the next multiplication reads, and the factors of the rows, by which that multiplies its results.
#include "elementwise/rms_norm.cuh"
#include "quant/activation.cuh"

struct NormArgs {
    const float *x;
    const float *weight;
    Activation out;
    uint32_t width;
    float eps;
    const uint32_t *selected;  // rows of x that are taken, null for all
};
static_assert(sizeof(NormArgs) == 64, "as in args.rs");

// Threads of a block that has a part of a row.
constexpr uint32_t PART_THREADS = 128;

__device__ __forceinline__ float square_sum(const float *x, uint32_t width) {
    float sum = 0.0f;
    if (width % 4 == 0) {
        const float4 *quads = reinterpret_cast<const float4 *>(x);
        for (uint32_t i = threadIdx.x; i < width / 4; i += NORM_THREADS) sum = add_squares(quads[i], sum);
    } else {
        for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) sum = __fmaf_rn(x[i], x[i], sum);
    }
    return sum;
}

// Rows of whole 8-bit blocks, four elements a thread at a time.
__device__ __forceinline__ void norm_quads(const NormArgs &args, const float *x, float *shares) {
    const uint32_t quads = args.width / 4;
    weigh_row(reinterpret_cast<const float4 *>(x), reinterpret_cast<const float4 *>(args.weight), quads, shares,
        [&](uint32_t quad, const float4 &v) {
            emit_quad<true>(args.out, blockIdx.x, quad, args.width, quad < quads, v);
        });
}

// Rows of any width.
__device__ __forceinline__ void norm_elements(const NormArgs &args, const float *x, float *shares) {
    await_then_launch();
    share_squares(square_sum(x, args.width), shares);
    // Whole warps, also at the end of a row: they make 8-bit blocks together.
    const uint32_t end = (args.width + WARP - 1) / WARP * WARP;
    for (uint32_t col = threadIdx.x; col < end; col += NORM_THREADS) {
        const float v = col < args.width ? __fmul_rn(x[col], args.weight[col]) : 0.0f;
        emit(args.out, blockIdx.x, col, args.width, v);
    }
}

// The row of x that the block norms.
__device__ __forceinline__ const float *source_of(const NormArgs &args) {
    // The list is in place since the first kernel of the step.
    const uint32_t row = args.selected != nullptr ? __ldcg(args.selected + blockIdx.x) : blockIdx.x;
    return args.x + (size_t)row * args.width;
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(NormArgs args, Shape) {
    __shared__ float shares[NORM_THREADS / WARP];
    const float *x = source_of(args);
    if (args.width % WARP == 0) norm_quads(args, x, shares);
    else norm_elements(args, x, shares);
    __syncthreads();
    if (threadIdx.x == 0) args.out.factors[blockIdx.x] = norm_factor(shares, args.width, args.eps);
}

// The squares of the threads of `rms_norm`, by the threads of a smaller block.
__device__ __forceinline__ void square_all(const float4 *x, uint32_t quads, float *shares) {
#pragma unroll
    for (uint32_t thread = threadIdx.x; thread < NORM_THREADS; thread += PART_THREADS) {
        float sum = 0.0f;
        for (uint32_t start = thread; start < quads; start += NORM_QUADS * NORM_THREADS) {
            float4 values[NORM_QUADS];
#pragma unroll
            for (uint32_t i = 0; i < NORM_QUADS; i++) {
                const uint32_t quad = start + i * NORM_THREADS;
                values[i] = quad < quads ? x[quad] : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (uint32_t i = 0; i < NORM_QUADS; i++) sum = add_squares(values[i], sum);
        }
        sum = warp_sum(sum);
        if (thread % WARP == 0) shares[thread / WARP] = sum;
    }
}

// The same for rows of whole 8-bit blocks by several small blocks a row: all but the last give each thread's quad its
// form, and the last one finds the factor. A block of products that fills an SM leaves registers enough for one of
// them, so that the next such block need not wait for them.
extern "C" __global__ void __launch_bounds__(PART_THREADS, 16)
    rms_norm_split(const __grid_constant__ NormArgs args, Shape) {
    __shared__ float shares[NORM_THREADS / WARP];
    launch_dependents();
    const float4 *x = reinterpret_cast<const float4 *>(source_of(args));
    const uint32_t quads = args.width / 4, own = blockIdx.y * PART_THREADS + threadIdx.x;
    if (blockIdx.y + 1 < gridDim.y) {
        const float4 none = make_float4(0, 0, 0, 0),
                     weight = own < quads ? __ldg(reinterpret_cast<const float4 *>(args.weight) + own) : none;
        await_dependencies();
        emit_quad<true>(args.out, blockIdx.x, own, args.width, own < quads, weigh(own < quads ? x[own] : none, weight));
        return;
    }
    await_dependencies();
    square_all(x, quads, shares);
    __syncthreads();
    if (threadIdx.x == 0) args.out.factors[blockIdx.x] = norm_factor(shares, args.width, args.eps);
}
