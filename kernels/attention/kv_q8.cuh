// Keys and values of 8 bits (src/kv/q8.rs): heads are rotated by Hadamard matrices, and stored as multiples of a scale
// for each 32 elements. The run of a head in a page has the multiples of its positions first, one position after the
// other, then the scales, those of a block for all positions after those of the block before.
#pragma once
#include "device.cuh"

constexpr uint32_t Q8_BLOCK = 32, MOST_ROTATED = 128;

__host__ __device__ constexpr uint32_t q8_blocks(uint32_t dim) { return (dim + Q8_BLOCK - 1) / Q8_BLOCK; }

// Bytes of a head of one position.
__host__ __device__ constexpr uint32_t q8_bytes(uint32_t dim) { return dim + 2 * q8_blocks(dim); }

// Elements that are rotated together: the largest power of two that divides the head, up to 128.
__host__ __device__ constexpr uint32_t rotated_elements(uint32_t dim) {
    return (dim & (0 - dim)) < MOST_ROTATED ? dim & (0 - dim) : MOST_ROTATED;
}

// The sum of two elements in the lower one's place, their difference in the other.
__device__ __forceinline__ float sum_or_difference(float own, float other, bool is_upper) {
    return is_upper ? __fadd_rn(other, -own) : __fadd_rn(own, other);
}

__device__ __forceinline__ float rotation_factor(uint32_t size) { return __fdiv_rn(1.0f, __fsqrt_rn((float)size)); }

// Rotates a head, of which a lane has every 32nd element from its own number on; what is behind the head's end has no
// meaning (fast Walsh-Hadamard transform).
template <uint32_t COUNT>
__device__ __forceinline__ void rotate(float (&x)[COUNT], uint32_t size) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t half = 1; half < WARP; half *= 2) {
        if (half >= size) break;
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++)
            x[j] = sum_or_difference(x[j], __shfl_xor_sync(ALL_LANES, x[j], half), (lane & half) != 0);
    }
#pragma unroll
    for (uint32_t apart = 1; apart < MOST_ROTATED / WARP; apart *= 2) {
        if (apart * WARP >= size) break;
#pragma unroll
        for (uint32_t j = 0; j + apart < COUNT; j++) {
            if ((j & apart) != 0) continue;
            const float low = x[j], high = x[j + apart];
            x[j] = __fadd_rn(low, high), x[j + apart] = __fadd_rn(low, -high);
        }
    }
    const float factor = rotation_factor(size);
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) x[j] = __fmul_rn(x[j], factor);
}

// The same for a head in memory, of up to MOST elements; by a warp.
template <uint32_t MOST>
__device__ __forceinline__ void rotate_head(float *head, uint32_t dim) {
    constexpr uint32_t COUNT = (MOST + WARP - 1) / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    float x[COUNT];
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) x[j] = lane + j * WARP < dim ? head[lane + j * WARP] : 0.0f;
    rotate(x, rotated_elements(dim));
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) {
        if (lane + j * WARP < dim) head[lane + j * WARP] = x[j];
    }
}

// A block of which a lane has one element: the scale, and the lane's multiple of it. A block that holds no finite
// number has multiples of 0 and a scale of NaN.
__device__ __forceinline__ __half encode_block(float v, int8_t &multiple) {
    const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffffu));
    const __half scale = __float2half_rn(__fdiv_rn(largest, 127.0f));
    const float by = __half2float(scale);
    const bool is_finite = by < INFINITY;
    // A small scale has few bits: it may have been rounded down by more than half a multiple of 127.
    multiple = is_finite && by > 0.0f ? (int8_t)__float2int_rn(fminf(fmaxf(__fdiv_rn(v, by), -127.0f), 127.0f)) : 0;
    return is_finite ? scale : __ushort_as_half(0x7e00);
}

// The run of a head in a page.
struct Q8Run {
    int8_t *multiples;
    __half *scales;

    __device__ __forceinline__ Q8Run(void *cache, size_t at, uint32_t dim)
        : multiples(reinterpret_cast<int8_t *>(cache) + at),
          scales(reinterpret_cast<__half *>(multiples + PAGE_TOKENS * dim)) {}

    __device__ __forceinline__ float scale(uint32_t block, uint32_t slot) const {
        return __half2float(scales[block * PAGE_TOKENS + slot]);
    }
};

// Rotates a head as `rotate` does, and writes it to its place; by a warp. Elements behind its end must be 0.
template <uint32_t COUNT>
__device__ __forceinline__ void store_q8(float (&x)[COUNT], uint32_t dim, const Q8Run &run, uint32_t slot) {
    const uint32_t lane = threadIdx.x % WARP;
    rotate(x, rotated_elements(dim));
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) {
        if (j * WARP >= dim) break;
        int8_t multiple;
        const bool inside = lane + j * WARP < dim;
        const __half scale = encode_block(inside ? x[j] : 0.0f, multiple);
        if (inside) run.multiples[slot * dim + lane + j * WARP] = multiple;
        if (lane == 0) run.scales[j * PAGE_TOKENS + slot] = scale;
    }
}
