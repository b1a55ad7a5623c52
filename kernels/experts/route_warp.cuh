// The choice of route.cuh for one row by a single warp, in registers: where experts rank by their logits, and there are
// 256 at most. Blocks that cannot go on before they know an expert find it sooner this way.
#pragma once
#include "experts/route.cuh"

// Experts of a lane, where there are 128 at most, and of more.
constexpr uint32_t FEW_EACH = 4, MOST_EACH = 8;
static_assert(MOST_EACH == ROUTE_WARPS, "sums over experts have the shares of a block's warps");

// Whether one warp may choose.
__device__ __forceinline__ bool fits_warp(const RouteArgs &args) {
    return ranks_by_logits(args) && args.experts <= WARP * MOST_EACH && args.chosen <= WARP;
}

// A lane's EACH neighbouring experts, the best first and of equal ones the lower number.
template <uint32_t EACH>
struct LaneRanks {
    uint32_t keys[EACH], experts[EACH];

    __device__ __forceinline__ explicit LaneRanks(const RouteArgs &args) {
        const uint32_t first = threadIdx.x % WARP * EACH;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            experts[i] = first + i;
            keys[i] = first + i < args.experts ? rank_key_of(__ldcg(args.logits + first + i)) : MASKED;
        }
        // Neighbours change places, so equal keys never do.
#pragma unroll
        for (uint32_t round = 0; round < EACH; round++) {
#pragma unroll
            for (uint32_t i = round % 2; i + 1 < EACH; i += 2) {
                const bool turns = keys[i] < keys[i + 1];
                const uint32_t key = keys[i], expert = experts[i];
                keys[i] = turns ? keys[i + 1] : key, experts[i] = turns ? experts[i + 1] : expert;
                keys[i + 1] = turns ? key : keys[i + 1], experts[i + 1] = turns ? expert : experts[i + 1];
            }
        }
    }

    // Takes the best expert that is left in the warp; of equal ones the lower number stands in the lower lane.
    __device__ __forceinline__ uint32_t take() {
        const uint32_t largest = __reduce_max_sync(ALL_LANES, keys[0]);
        const uint32_t owner = __ffs(__ballot_sync(ALL_LANES, keys[0] == largest)) - 1;
        const uint32_t expert = __shfl_sync(ALL_LANES, experts[0], owner);
        const bool is_own = threadIdx.x % WARP == owner;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            keys[i] = !is_own ? keys[i] : i + 1 < EACH ? keys[i + 1] : MASKED;
            experts[i] = is_own && i + 1 < EACH ? experts[i + 1] : experts[i];
        }
        return expert;
    }
};

template <uint32_t EACH>
__device__ __forceinline__ uint32_t take_experts(const RouteArgs &args, uint32_t count) {
    LaneRanks<EACH> ranks(args);
    uint32_t own = 0;
#pragma unroll 1
    for (uint32_t slot = 0; slot < count; slot++) {
        const uint32_t expert = ranks.take();
        if (threadIdx.x % WARP == slot) own = expert;
    }
    return own;
}

// The best `count` experts, that of a slot in the lane of its number; by a whole warp.
__device__ __forceinline__ uint32_t find_experts(const RouteArgs &args, uint32_t count) {
    return args.experts <= WARP * FEW_EACH ? take_experts<FEW_EACH>(args, count) : take_experts<MOST_EACH>(args, count);
}

// The softmax over all experts of one logit, with the sums of `score_all`; by a whole warp.
__device__ __forceinline__ float softmax_of(const RouteArgs &args, float logit) {
    const uint32_t lane = threadIdx.x % WARP;
    float logits[MOST_EACH], largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < MOST_EACH; i++) {
        logits[i] = i * WARP + lane < args.experts ? __ldcg(args.logits + i * WARP + lane) : -INFINITY;
    }
#pragma unroll
    for (uint32_t i = 0; i < MOST_EACH; i++) largest = fmaxf(largest, logits[i]);
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
#pragma unroll
    for (uint32_t i = 0; i < MOST_EACH; i++) {
        float share = i * WARP + lane < args.experts ? expf(__fsub_rn(logits[i], largest)) : 0.0f;
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2)
            share = __fadd_rn(share, __shfl_xor_sync(ALL_LANES, share, step));
        sum = __fadd_rn(sum, share);
    }
    return __fdiv_rn(expf(__fsub_rn(logit, largest)), sum);
}

// The weights of the choice, each in the lane of its slot, as the experts are; `scores` has room for one of each lane.
__device__ __forceinline__ float find_weight(const RouteArgs &args, uint32_t expert, float *scores) {
    const uint32_t lane = threadIdx.x % WARP;
    const float logit = lane < args.chosen ? __ldcg(args.logits + expert) : 0.0f;
    scores[lane] = args.score == SOFTMAX ? softmax_of(args, logit) : args.score == SIGMOID ? sigmoid_of(logit) : logit;
    __syncwarp();
    return lane < args.chosen ? weight_of(args, scores, lane) : 0.0f;
}
