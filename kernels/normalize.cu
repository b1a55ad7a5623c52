// Norms whose result is there as such, for any reader: of whole rows or of each head of a row, by the root of the mean square (Zhang and Sennrich, "Root
// Mean Square Layer Normalization") or by mean and variance (Ba et al., "Layer Normalization"). A block a row or a head. What products alone read is
// normalized by `rms_norm` (norm.cu), which leaves the division to them.
#include "common/activation.cuh"
#include "common/norm.cuh"

struct NormalizeArgs {
    const float *x;
    const float *weight, *bias;  // `bias` may be null
    const float *sum;            // what the result is added to, null for nothing
    Activation out;
    uint32_t width;  // elements that are normalized together
    float eps;
    uint32_t centered, pad;  // 1 for a layer norm, which subtracts the mean
};

// The sum over the block, the same in every thread.
__device__ __forceinline__ float block_sum(float v, float *shares) {
    __syncthreads();
    share_squares(v, shares);
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_THREADS / WARP; i++) sum = __fadd_rn(sum, shares[i]);
    return sum;
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) normalize(const __grid_constant__ NormalizeArgs args, Shape) {
    __shared__ float shares[NORM_THREADS / WARP];
    wait_for_producers();
    const uint32_t row = blockIdx.x * gridDim.y + blockIdx.y, width = args.width;
    const float *x = args.x + (size_t)row * width;
    float mean = 0.0f;
    if (args.centered) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) sum = __fadd_rn(sum, x[i]);
        mean = __fdiv_rn(block_sum(sum, shares), (float)width);
    }
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) {
        const float v = __fsub_rn(x[i], mean);
        squares = __fmaf_rn(v, v, squares);
    }
    const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(squares, shares), (float)width), args.eps)));
    // Whole warps, also at the end of a row: they make 8-bit blocks together.
    const uint32_t end = (width + WARP - 1) / WARP * WARP;
    for (uint32_t col = threadIdx.x; col < end; col += NORM_THREADS) {
        float v = 0.0f;
        if (col < width) {
            v = __fmul_rn(__fmul_rn(__fsub_rn(x[col], mean), factor), args.weight[col]);
            if (args.bias != nullptr) v = __fadd_rn(v, args.bias[col]);
            if (args.sum != nullptr) v = __fadd_rn(args.sum[(size_t)row * width + col], v);
        }
        emit(args.out, row, col, width, v);
    }
}
