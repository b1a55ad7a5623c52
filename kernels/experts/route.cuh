// The choice of a row's experts by the logits of a router, by the threads of a block, ROUTE_WARPS at most: scores, with
// a bias for the choice alone; groups with the largest sums of their best; then the best of what is left, of equal ones
// the lower number. Without bias and groups the logits rank. The rule is that of `Routing` in src/plan/op.rs.
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

// Calls `f` with the experts of this warp: a block of fewer than ROUTE_WARPS has several shares a warp. `end` is called
// after each share, with its number.
template <typename F, typename End>
__device__ __forceinline__ void each_share(uint32_t experts, const F &f, const End &end) {
    for (uint32_t share = threadIdx.x / WARP; share < ROUTE_WARPS; share += blockDim.x / WARP) {
        for (uint32_t i = share * WARP + threadIdx.x % WARP; i < experts; i += ROUTE_THREADS) f(i);
        end(share);
    }
}

template <typename F>
__device__ __forceinline__ void each_expert(uint32_t experts, const F &f) {
    each_share(experts, f, [](uint32_t) {});
}

// The result of `f` over what `value` makes of all experts, from `first` on, in an order that the block's size does not
// change.
template <typename F, typename V>
__device__ __forceinline__ float reduce_experts(
    uint32_t experts, float first, float *shares, const F &f, const V &value) {
    float v = first;
    each_share(
        experts, [&](uint32_t i) { v = f(v, value(i)); },
        [&](uint32_t share) {
#pragma unroll
            for (int step = WARP / 2; step > 0; step /= 2) v = f(v, __shfl_xor_sync(ALL_LANES, v, step));
            if (threadIdx.x % WARP == 0) shares[share] = v;
            v = first;
        });
    __syncthreads();
    v = shares[0];
#pragma unroll
    for (uint32_t i = 1; i < ROUTE_WARPS; i++) v = f(v, shares[i]);
    return v;
}

struct RouteStorage {
    float scores[MOST_EXPERTS], shares[2][ROUTE_WARPS], weights[MOST_CHOSEN];
    uint32_t keys[MOST_EXPERTS], ids[MOST_CHOSEN];
    union {
        uint32_t group_keys[MOST_EXPERTS];
        uint32_t best_keys[MOST_EXPERTS];  // of the best of each 32 experts, behind those of groups
    };
    uint16_t best_ids[MOST_EXPERTS];
};

// Whether the order of experts is that of their logits, which every score keeps.
__device__ __forceinline__ bool ranks_by_logits(const RouteArgs &args) {
    return args.bias == nullptr && args.groups <= 1;
}

// Scores of all experts by what `logit` gives for each, in the place that its thread reads again.
template <typename Logit>
__device__ __forceinline__ void score_all(const RouteArgs &args, const Logit &logit, RouteStorage &space) {
    if (args.score != SOFTMAX) {
        each_expert(args.experts, [&](uint32_t i) {
            const float x = logit(i);
            space.scores[i] = args.score == SIGMOID ? sigmoid_of(x) : x;
        });
        return;
    }
    const float largest = reduce_experts(
        args.experts, -INFINITY, space.shares[0], [](float a, float b) { return fmaxf(a, b); },
        [&](uint32_t i) { return space.scores[i] = logit(i); });
    const float sum = reduce_experts(
        args.experts, 0.0f, space.shares[1], [](float a, float b) { return __fadd_rn(a, b); },
        [&](uint32_t i) { return space.scores[i] = expf(__fsub_rn(space.scores[i], largest)); });
    each_expert(args.experts, [&](uint32_t i) { space.scores[i] = __fdiv_rn(space.scores[i], sum); });
}

// Masks the experts of all groups but the best.
__device__ __forceinline__ void keep_groups(const RouteArgs &args, RouteStorage &space) {
    const uint32_t size = args.experts / args.groups;
    for (uint32_t group = threadIdx.x; group < args.groups; group += blockDim.x) {
        uint32_t best = MASKED, second = MASKED;
        for (uint32_t i = group * size; i < (group + 1) * size; i++) {
            const uint32_t key = space.keys[i];
            second = max(second, min(best, key)), best = max(best, key);
        }
        const bool adds = size > 1 && args.best > 1;
        space.group_keys[group] = rank_key_of(adds ? __fadd_rn(number_of(best), number_of(second)) : number_of(best));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.experts; i += blockDim.x) {
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

// How many keys of the warp come before the lane's.
__device__ __forceinline__ uint32_t rank_in_warp(uint32_t key) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t rank = 0;
#pragma unroll
    for (uint32_t i = 0; i < WARP; i++) {
        const uint32_t other = __shfl_sync(ALL_LANES, key, i);
        rank += (other > key) | ((other == key) & (i < lane));
    }
    return rank;
}

// Finds the experts with the best keys: of each 32 as many as are chosen at most, then those of these. Equal ones stay
// in the order of their numbers.
__device__ __forceinline__ void rank_keys(const RouteArgs &args, RouteStorage &space) {
    const uint32_t lane = threadIdx.x % WARP, most = min(args.chosen, (uint32_t)WARP);
    for (uint32_t first = threadIdx.x - lane; first < args.experts; first += blockDim.x) {
        const uint32_t expert = first + lane, key = expert < args.experts ? space.keys[expert] : MASKED;
        const uint32_t rank = rank_in_warp(key), at = first / WARP * most + rank;
        if (expert < args.experts && rank < most) space.best_keys[at] = key, space.best_ids[at] = (uint16_t)expert;
    }
    __syncthreads();
    const uint32_t rest = args.experts % WARP, count = args.experts / WARP * most + min(rest, most);
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const uint32_t rank = rank_of(space.best_keys, count, i);
        if (rank >= args.chosen) continue;
        const uint32_t expert = space.best_ids[i];
        space.ids[rank] = expert, space.weights[rank] = space.scores[expert];
    }
    __syncthreads();
}

// Finds the experts of a row with such logits, best first: their numbers, and their scores.
template <typename Logit>
__device__ __forceinline__ void rank_experts(const RouteArgs &args, const Logit &logit, RouteStorage &space) {
    const auto read = [&](uint32_t i) {
        const float x = logit(i);
        space.keys[i] = rank_key_of(x);
        return x;
    };
    score_all(args, read, space);
    if (!ranks_by_logits(args)) {
        each_expert(args.experts, [&](uint32_t i) {
            const float score = space.scores[i];
            space.keys[i] = rank_key_of(args.bias != nullptr ? __fadd_rn(score, args.bias[i]) : score);
        });
    }
    __syncthreads();
    if (args.groups > 1) keep_groups(args, space);
    rank_keys(args, space);
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
    rank_experts(args, [&](uint32_t i) { return logits[i]; }, space);
    write_choice(args, row, space);
}
