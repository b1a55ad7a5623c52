// Attention in parts: where the positions are split, what is kept of a part, and how two parts become one (Milakov and
// Gimelshein, "Online normalizer calculation for softmax").
//
// Scores are powers of two, and maxima are rounded up to whole numbers: the factors between them are then powers of
// two, so that rescaling adds no rounding, whenever it is done.
#pragma once
#include "attention/heads.cuh"
#include "quant/activation.cuh"

// Splits of the positions: short ones first, so that a short context has work for many blocks, then longer ones, so
// that a long one has few parts.
constexpr uint32_t SHORT_SPLIT = 256, SHORT_SPLITS = 8, LONG_SPLIT = 512;
constexpr uint32_t SHORT_TOKENS = SHORT_SPLITS * SHORT_SPLIT;

struct AttentionArgs {
    HeadsArgs in;
    float *mixed;     // [row][head][split][value_dim], relative to the split's maximum
    float2 *states;   // [row][head][split]: maximum, sum
    uint32_t *ended;  // [row][blocks of a row]: blocks that have ended; left at 0
    Activation out;
    const float *sinks;  // a score of each head that adds to the sum alone, null for none
    float scale;         // of products of queries and keys; scores are powers of two
    float cap;           // times the hyperbolic tangent of that product; 0 for the product itself
    uint32_t window;     // positions that a row sees, its own the last of them
    uint32_t width;  // the same, and those behind its own that it sees too, where they are in the pass; none in steps
    // 1 in steps whose rows may follow each other in a sequence: a launch before has put the keys and values of all
    // rows into the cache.
    uint32_t follows;
    uint32_t floats;  // whether anything reads the results as floats, where they have 8-bit blocks
};
static_assert(sizeof(AttentionArgs) == 240, "as in args.rs");

// The first position that a row sees.
__device__ __forceinline__ uint32_t first_seen(const AttentionArgs &args, uint32_t position) {
    return position + 1 - min(position + 1, args.window);
}

// How many rows of the pass from row `begin` to `end` are those of a sequence. By the whole block.
__device__ __forceinline__ uint32_t rows_behind(const Row *rows, uint32_t slot, uint32_t begin, uint32_t end) {
    __shared__ uint32_t total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    uint32_t own = 0;
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) own += __ldcg(&rows[i].slot) == slot;
    own = __reduce_add_sync(ALL_LANES, own);
    if (threadIdx.x % WARP == 0) atomicAdd(&total, own);
    __syncthreads();
    return total;
}

__device__ __forceinline__ uint32_t split_of(uint32_t position) {
    return position < SHORT_TOKENS ? position / SHORT_SPLIT : SHORT_SPLITS + (position - SHORT_TOKENS) / LONG_SPLIT;
}

__device__ __forceinline__ uint32_t splits_of(uint32_t keys) {
    return keys <= SHORT_TOKENS ? (keys + SHORT_SPLIT - 1) / SHORT_SPLIT
                                : SHORT_SPLITS + (keys - SHORT_TOKENS + LONG_SPLIT - 1) / LONG_SPLIT;
}

__device__ __forceinline__ uint32_t split_start(uint32_t split) {
    return split <= SHORT_SPLITS ? split * SHORT_SPLIT : SHORT_TOKENS + (split - SHORT_SPLITS) * LONG_SPLIT;
}

// Parts that a row has room for: where it is a prompt's, or has but one split, its block leaves one.
__device__ __forceinline__ uint32_t part_stride(const Shape &shape) { return max(shape.splits, 1u); }

// Scores are powers of two.
constexpr float LOG2_E = 1.4426950408889634f;

// 2^e for a whole number that is not positive, or minus infinity. The difference of two minus infinities gives 1: their
// sums are 0.
__device__ __forceinline__ float power(float e) { return e < -126.0f ? 0.0f : __int_as_float(((int)e + 127) << 23); }

// 2^e for any number, to within two units in the last place.
__device__ __forceinline__ float power_of(float e) {
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(e));
    return v;
}

struct State {
    float max, sum;
};

// Factors of the old and of the new part.
__device__ __forceinline__ float2 merge_state(State &state, float max, float sum) {
    const float top = fmaxf(state.max, max);
    const float2 factor = make_float2(power(state.max - top), power(max - top));
    state.sum = __fmaf_rn(state.sum, factor.x, __fmul_rn(sum, factor.y));
    state.max = top;
    return factor;
}

__device__ __forceinline__ float merge_value(float old, float mixed, float2 factor) {
    return __fmaf_rn(old, factor.x, __fmul_rn(mixed, factor.y));
}

// What scores are taken relative to: the maximum so far, or 0 where nothing but hidden positions came; their weights
// are 0 then.
__device__ __forceinline__ float2 base_of(float2 top) {
    return make_float2(top.x == -INFINITY ? 0.0f : top.x, top.y == -INFINITY ? 0.0f : top.y);
}

// What sums so far are multiplied by.
__device__ __forceinline__ float2 factor_between(float2 before, float2 top) {
    return make_float2(power(before.x - top.x), power(before.y - top.y));
}

// What the sink of a head adds to the sum of its weights, which are relative to `top`.
__device__ __forceinline__ float sink_weight(const AttentionArgs &args, uint32_t head, float top) {
    return args.sinks == nullptr ? 0.0f : power_of(__fmaf_rn(args.sinks[head], LOG2_E, -top));
}

// A lane's part of a fragment of D, whose columns have these factors.
__device__ __forceinline__ void rescale(float (&out)[4], float2 factor) {
    out[0] = __fmul_rn(out[0], factor.x), out[1] = __fmul_rn(out[1], factor.y);
    out[2] = __fmul_rn(out[2], factor.x), out[3] = __fmul_rn(out[3], factor.y);
}
