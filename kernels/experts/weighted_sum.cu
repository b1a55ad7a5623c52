// The sum of the rows of a row's experts, by the weights of the choice and in its order, in the place of a value or
// added to it; alone, or with the norm of the result for products, whose bits are those of `rms_norm`.
#include "elementwise/rms_norm.cuh"
#include "quant/activation.cuh"

struct WeightedSumArgs {
    const float *x;  // a row for each pair
    const float *choice;
    Activation out;
    uint32_t width, chosen;
    float adds;         // what the sum is multiplied by and then added to `out`; 0 where it takes the place of that
    float eps;          // of the norm
    const float *norm;  // its weights
    Activation normed;  // its result
};
static_assert(sizeof(WeightedSumArgs) == 104, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) weighted_sum(const __grid_constant__ WeightedSumArgs args, Shape) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const float *weights = args.choice + ((size_t)blockIdx.y * 2 + 1) * args.chosen;
    const float *x = args.x + (size_t)blockIdx.y * args.chosen * args.width + col;
    float sum = 0.0f;
    if (col < args.width) {
        const float residual = args.adds ? args.out.x[(size_t)blockIdx.y * args.width + col] : 0.0f;
#pragma unroll 4
        for (uint32_t slot = 0; slot < args.chosen; slot++)
            sum = __fmaf_rn(weights[slot], x[(size_t)slot * args.width], sum);
        if (args.adds) sum = __fmaf_rn(args.adds, sum, residual);
    }
    emit(args.out, blockIdx.y, col, args.width, sum);
}

constexpr uint32_t ROW_THREADS = 512;
static_assert(ROW_THREADS == 512 && ROW_THREADS >= NORM_THREADS, "as in lower/experts.rs");

__device__ __forceinline__ float4 add_weighted(float weight, const float4 &v, const float4 &sum) {
    return make_float4(__fmaf_rn(weight, v.x, sum.x), __fmaf_rn(weight, v.y, sum.y), __fmaf_rn(weight, v.z, sum.z),
        __fmaf_rn(weight, v.w, sum.w));
}

// Four elements of the sum of a row, which is written to `out`.
__device__ __forceinline__ float4 sum_quad(const WeightedSumArgs &args, uint32_t row, uint32_t quad) {
    const uint32_t quads = args.width / 4;
    const float *weights = args.choice + ((size_t)row * 2 + 1) * args.chosen;
    const float4 *x = reinterpret_cast<const float4 *>(args.x) + (size_t)row * args.chosen * quads + quad;
    float4 *out = reinterpret_cast<float4 *>(args.out.x) + (size_t)row * quads + quad;
    float4 sum = make_float4(0, 0, 0, 0), residual = sum;
    if (args.adds) residual = *out;
#pragma unroll 8
    for (uint32_t slot = 0; slot < args.chosen; slot++) sum = add_weighted(weights[slot], x[(size_t)slot * quads], sum);
    if (args.adds) sum = add_weighted(args.adds, sum, residual);
    *out = sum;
    return sum;
}

// A block a row.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    weighted_sum_norm(const __grid_constant__ WeightedSumArgs args, Shape) {
    extern __shared__ __align__(16) float4 sums[];
    __shared__ float shares[NORM_THREADS / WARP];
    const uint32_t row = blockIdx.x, quads = args.width / 4;
    const float4 *weights = reinterpret_cast<const float4 *>(args.norm), none = make_float4(0, 0, 0, 0);
    launch_then_await();
    // Whole warps, also at the end of a row.
    for (uint32_t first = threadIdx.x / WARP * WARP; first < quads; first += ROW_THREADS) {
        const uint32_t quad = first + threadIdx.x % WARP;
        const bool inside = quad < quads;
        const float4 weight = inside ? __ldg(weights + quad) : none, sum = inside ? sum_quad(args, row, quad) : none;
        if (inside) sums[quad] = sum;
        emit_quad<true>(args.normed, row, quad, args.width, inside, weigh(sum, weight));
    }
    __syncthreads();
    if (threadIdx.x < NORM_THREADS) {
        float squares = 0.0f;
        for (uint32_t quad = threadIdx.x; quad < quads; quad += NORM_THREADS)
            squares = add_squares(sums[quad], squares);
        share_squares(squares, shares);
    }
    __syncthreads();
    if (threadIdx.x == 0) args.normed.factors[row] = norm_factor(shares, args.width, args.eps);
}
