// What multiplications take: a few matrices of one input, each with a storage type of its own.
#pragma once
#include "quant/unpack.cuh"

struct Segment {
    Matrix matrix;
    const float *bias;
    float *out;
    uint32_t first_tile;
    float adds;  // what the result is multiplied by and then added to `out`; 0 where it takes the place of that
};
static_assert(sizeof(Segment) == 56, "as in args.rs");

// What products of several rows take, with what stands behind them.
struct TensorArgs {
    Activation x;
    Activation gated;  // where activate(segment 0) * segment 1 goes; x is null where the segments are independent
    Sigmoid unit;      // of that activation
    uint32_t cols, count;
    uint32_t on_outputs;  // whether x has a row for each output instead of each row of the batch
    uint32_t
        f16_row_bytes;  // the most that a weight row of any product takes in a stage of the kernels of 16-bit floats
    Segment segments[3];
};
static_assert(sizeof(TensorArgs) == 256, "as in args.rs");

// The segment of a tile. Those that are not there are not looked at: to load the first tiles of all six, where a launch
// has one or three, took 2 to 3 % of a step of small models.
template <int MOST>
__device__ __forceinline__ uint32_t segment_of(const Segment (&segments)[MOST], uint32_t count, uint32_t tile) {
    uint32_t own = 0;
#pragma unroll
    for (uint32_t i = 1; i < MOST; i++) {
        if (i >= count || tile < segments[i].first_tile) break;
        own = i;
    }
    return own;
}

// The sum of a warp's lanes in the order of every multiplication: neighbours first, then pairs of them, and so on.
__device__ __forceinline__ float add_neighbours(float v) {
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) v = __fadd_rn(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

// Of two values that a lane has, and another one that differs from it in bit STEP of its number, the sum of both lanes'
// first or second.
template <int STEP>
__device__ __forceinline__ float share(float first, float second) {
    const bool is_second = threadIdx.x & STEP;
    const float other = __shfl_xor_sync(ALL_LANES, is_second ? first : second, STEP);
    return __fadd_rn(is_second ? second : first, other);
}

// The warp's number as a value that is the same in all its lanes.
__device__ __forceinline__ uint32_t warp_number() { return __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0); }
