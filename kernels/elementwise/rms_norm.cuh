// RMS norm of a row (Zhang and Sennrich, "Root Mean Square Layer Normalization") by the threads of a block: the values
// times their weights, and the factor of the whole row, which goes to the sums that are made of them.
#pragma once
#include "device.cuh"

constexpr int NORM_THREADS = 256;

__device__ __forceinline__ float add_squares(const float4 &v, float sum) {
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
}

__device__ __forceinline__ float4 weigh(const float4 &v, const float4 &w) {
    return make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w));
}

// Puts the warp's share of the squares into its place.
__device__ __forceinline__ void share_squares(float sum, float *shares) {
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP] = sum;
}

// After a barrier.
__device__ __forceinline__ float norm_factor(const float *shares, uint32_t width, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_THREADS / WARP; i++) sum = __fadd_rn(sum, shares[i]);
    return rsqrtf(__fdividef(sum, (float)width) + eps);
}

// Quads of values that a thread holds at a time.
constexpr int NORM_QUADS = 4;

// Gives `put` each quad of a row times its weights, by whole warps that may reach past the row, and `shares` the
// squares. The weights come to registers before the block waits for its producers, and all values at once after it.
template <typename Put>
__device__ __forceinline__ void weigh_row(
    const float4 *x, const float4 *weights, uint32_t quads, float *shares, Put put) {
    const float4 none = make_float4(0, 0, 0, 0);
    float4 early[NORM_QUADS];
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        early[i] = quad < quads ? __ldg(weights + quad) : none;
    }
    launch_then_await();
    float4 values[NORM_QUADS];
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        values[i] = quad < quads ? x[quad] : none;
    }
    float sum = 0.0f;
    const auto take = [&](uint32_t quad, const float4 &v, const float4 &w) {
        sum = add_squares(v, sum);
        put(quad, weigh(v, w));
    };
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        if (i * NORM_THREADS < quads) take(threadIdx.x + i * NORM_THREADS, values[i], early[i]);
    }
    for (uint32_t start = NORM_QUADS * NORM_THREADS; start < quads; start += NORM_THREADS) {
        const uint32_t quad = start + threadIdx.x;
        take(quad, quad < quads ? x[quad] : none, quad < quads ? __ldg(weights + quad) : none);
    }
    share_squares(sum, shares);
}
