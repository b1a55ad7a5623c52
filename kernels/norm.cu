// RMS norm of a row (Zhang and Sennrich, "Root Mean Square Layer Normalization"), one block a row, and the gated unit of the feed-forward
// (Shazeer, "GLU Variants Improve Transformer"). Both write the 8-bit form that the next multiplication reads.
#include "common/activation.cuh"

struct NormArgs {
    const float *x;
    const float *weight;
    Activation out;
    uint32_t width;
    float eps;
};

struct SiluArgs {
    Activation gate;
    const float *up;
    uint32_t width, pad;
};

constexpr int NORM_THREADS = 512;

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(NormArgs args, Shape) {
    __shared__ float sums[NORM_THREADS / WARP];
    wait_for_producers();
    const float *x = args.x + (size_t)blockIdx.x * args.width;
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x; col < args.width; col += NORM_THREADS) sum = __fmaf_rn(x[col], x[col], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < NORM_THREADS / WARP; i++) sum = __fadd_rn(sum, sums[i]);
    const float factor = __frcp_rn(__fsqrt_rn(sum / (float)args.width + args.eps));
    // Whole warps, also at the end of a row: they make 8-bit blocks together.
    const uint32_t end = (args.width + WARP - 1) / WARP * WARP;
    for (uint32_t col = threadIdx.x; col < end; col += NORM_THREADS) {
        const float v = col < args.width ? x[col] * factor * args.weight[col] : 0.0f;
        emit(args.out, blockIdx.x, col, args.width, v);
    }
}

extern "C" __global__ void __launch_bounds__(256) silu_mul(SiluArgs args, Shape) {
    wait_for_producers();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t at = (size_t)blockIdx.y * args.width + col;
    float v = 0.0f;
    if (col < args.width) {
        const float gate = args.gate.x[at];
        v = __fdiv_rn(gate, 1.0f + expf(-gate)) * args.up[at];
    }
    emit(args.gate, blockIdx.y, col, args.width, v);
}
