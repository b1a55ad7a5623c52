// The choice of a row's experts by the logits of a router, by the threads of a block: scores, with a bias for the
// choice alone; groups with the largest sums of their best; then the best of what is left, of equal ones the lower
// number. The rule is that of `Routing` in src/plan/op.rs.
#pragma once
#include "experts/choice.cuh"

// What is made of logits.
enum RouteScore : uint32_t { SOFTMAX, SIGMOID, CHOSEN_SOFTMAX };
static_assert(SOFTMAX == 0 && SIGMOID == 1 && CHOSEN_SOFTMAX == 2, "as in args.rs");

struct RouteArgs {
    const float *logits;  // one for each expert
    const float *bias;    // null for none
    float *choice;        // written
    float scale;
    uint32_t experts, chosen, groups, kept;  // without groups both are 1
    RouteScore score;
    uint32_t normalizes;
    uint32_t best;  // experts of a group whose sum ranks it: one or two
};
static_assert(sizeof(RouteArgs) == 56, "as in args.rs");

constexpr uint32_t ROUTE_THREADS = 256, ROUTE_WARPS = ROUTE_THREADS / WARP, MOST_EXPERTS = 1024, MOST_CHOSEN = 64;
// Least sum by which weights are divided: 2^-14.
constexpr float LEAST_SUM = 1.0f / 16384.0f;
// Keys of what is not looked at, and of what is no number: below all others.
constexpr uint32_t MASKED = 0, NO_NUMBER = 1;

// Integers in the order of numbers, both zeros the same.
__device__ __forceinline__ uint32_t rank_key_of(float x) {
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return isnan(x) ? NO_NUMBER : bits >> 31 ? ~bits : bits | 1u << 31;
}

__device__ __forceinline__ float number_of(uint32_t key) {
    return key <= NO_NUMBER ? __int_as_float(0x7fc00000) : __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// How many of `count` keys come before number `own`.
__device__ __forceinline__ uint32_t rank_of(const uint32_t *keys, uint32_t count, uint32_t own) {
    const uint32_t key = keys[own];
    uint32_t rank = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < count; i++) rank += (keys[i] > key) | ((keys[i] == key) & (i < own));
    return rank;
}

template <typename F>
__device__ __forceinline__ float reduce_block(float v, float *shares, F f) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(ALL_LANES, v, step));
    if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP] = v;
    __syncthreads();
    v = shares[0];
#pragma unroll
    for (uint32_t i = 1; i < ROUTE_WARPS; i++) v = f(v, shares[i]);
    return v;
}

struct RouteStorage {
    float scores[MOST_EXPERTS], shares[2][ROUTE_WARPS], weights[MOST_CHOSEN];
    uint32_t keys[MOST_EXPERTS], group_keys[MOST_EXPERTS], ids[MOST_CHOSEN];
};

// Scores of all experts, each in the place that its thread reads again.
__device__ __forceinline__ void score_all(const RouteArgs &args, const float *logits, RouteStorage &space) {
    float largest = -INFINITY, sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS) {
        const float x = logits[i];
        space.scores[i] = args.score == SIGMOID ? __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))) : x;
        largest = fmaxf(largest, x);
    }
    if (args.score != SOFTMAX) return;
    largest = reduce_block(largest, space.shares[0], [](float a, float b) { return fmaxf(a, b); });
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS) {
        const float e = expf(__fsub_rn(space.scores[i], largest));
        space.scores[i] = e, sum = __fadd_rn(sum, e);
    }
    sum = reduce_block(sum, space.shares[1], [](float a, float b) { return __fadd_rn(a, b); });
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS)
        space.scores[i] = __fdiv_rn(space.scores[i], sum);
}

// Masks the experts of all groups but the best.
__device__ __forceinline__ void keep_groups(const RouteArgs &args, RouteStorage &space) {
    const uint32_t size = args.experts / args.groups;
    for (uint32_t group = threadIdx.x; group < args.groups; group += ROUTE_THREADS) {
        uint32_t best = MASKED, second = MASKED;
        for (uint32_t i = group * size; i < (group + 1) * size; i++) {
            const uint32_t key = space.keys[i];
            second = max(second, min(best, key)), best = max(best, key);
        }
        const bool adds = size > 1 && args.best > 1;
        space.group_keys[group] = rank_key_of(adds ? __fadd_rn(number_of(best), number_of(second)) : number_of(best));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS) {
        if (rank_of(space.group_keys, args.groups, i / size) >= args.kept) space.keys[i] = MASKED;
    }
    __syncthreads();
}

// The weight of the expert in `slot`; sums go by slots.
__device__ __forceinline__ float weight_of(const RouteArgs &args, const float *weights, uint32_t slot) {
    float weight = weights[slot];
    if (args.score == CHOSEN_SOFTMAX) {
        float largest = -INFINITY, sum = 0.0f;
        for (uint32_t i = 0; i < args.chosen; i++) largest = fmaxf(largest, weights[i]);
        for (uint32_t i = 0; i < args.chosen; i++) sum = __fadd_rn(sum, expf(__fsub_rn(weights[i], largest)));
        weight = __fdiv_rn(expf(__fsub_rn(weight, largest)), sum);
    }
    if (args.normalizes) {
        float sum = args.score == CHOSEN_SOFTMAX ? 1.0f : 0.0f;
        for (uint32_t i = 0; i < args.chosen && args.score != CHOSEN_SOFTMAX; i++) sum = __fadd_rn(sum, weights[i]);
        weight = __fdiv_rn(weight, sum < LEAST_SUM ? LEAST_SUM : sum);
    }
    return args.scale != 1.0f ? __fmul_rn(weight, args.scale) : weight;
}

// Finds the experts of a row whose logits are at `logits`, best first: their numbers, and their scores.
__device__ __forceinline__ void rank_experts(const RouteArgs &args, const float *logits, RouteStorage &space) {
    score_all(args, logits, space);
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS) {
        space.keys[i] = rank_key_of(args.bias != nullptr ? __fadd_rn(space.scores[i], args.bias[i]) : space.scores[i]);
    }
    __syncthreads();
    if (args.groups > 1) keep_groups(args, space);
    for (uint32_t i = threadIdx.x; i < args.experts; i += ROUTE_THREADS) {
        const uint32_t rank = rank_of(space.keys, args.experts, i);
        if (rank < args.chosen) space.ids[rank] = i, space.weights[rank] = space.scores[i];
    }
    __syncthreads();
}

// Writes the choice of row `row`.
__device__ __forceinline__ void write_choice(const RouteArgs &args, uint32_t row, const RouteStorage &space) {
    if (threadIdx.x >= args.chosen) return;
    float *choice = args.choice + (size_t)row * 2 * args.chosen;
    choice[threadIdx.x] = __uint_as_float(space.ids[threadIdx.x]);
    choice[args.chosen + threadIdx.x] = weight_of(args, space.weights, threadIdx.x);
}

// Chooses for row `row`, whose logits are at `logits`.
__device__ __forceinline__ void choose_experts(
    const RouteArgs &args, const float *logits, uint32_t row, RouteStorage &space) {
    rank_experts(args, logits, space);
    write_choice(args, row, space);
}
