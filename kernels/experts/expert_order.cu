// The pairs of a batch in the order of their experts, and tiles of some pairs of one expert each. One block; pairs of
// one expert keep their order.
#include "experts/choice.cuh"

struct OrderArgs {
    const float *choice;
    uint32_t *order;                       // written: pairs by experts
    ExpertTile *tiles;                     // written
    uint32_t *count;                       // written: how many tiles
    uint32_t experts, chosen, width, pad;  // `width` pairs a tile at most
};
static_assert(sizeof(OrderArgs) == 48, "as in args.rs");

constexpr uint32_t THREADS = 1024, WARPS = THREADS / WARP, MOST_EXPERTS = 1024;

// The sum of `v` over the threads before this one.
__device__ __forceinline__ uint32_t sum_before(uint32_t v, uint32_t *shares) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = v;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const uint32_t other = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == WARP - 1) shares[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++) sum += shares[i];
    __syncthreads();
    return sum - v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    expert_order(const __grid_constant__ OrderArgs args, Shape shape) {
    __shared__ uint32_t counts[MOST_EXPERTS], starts[MOST_EXPERTS], shares[WARPS];
    counts[threadIdx.x] = 0;
    await_then_launch();
    __syncthreads();
    const uint32_t pairs = shape.rows * args.chosen;
    for (uint32_t pair = threadIdx.x; pair < pairs; pair += THREADS)
        atomicAdd(&counts[expert_of(args.choice, args.chosen, pair)], 1);
    __syncthreads();
    // A thread an expert.
    const uint32_t own = counts[threadIdx.x], tiles = (own + args.width - 1) / args.width;
    const uint32_t first = sum_before(own, shares), first_tile = sum_before(tiles, shares);
    starts[threadIdx.x] = first;
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t begin = i * args.width;
        args.tiles[first_tile + i] = ExpertTile{threadIdx.x, first + begin, min(args.width, own - begin), 0};
    }
    if (threadIdx.x == THREADS - 1) *args.count = first_tile + tiles;
    __syncthreads();
    // A warp an expert, in turn.
    for (uint32_t expert = threadIdx.x / WARP; expert < args.experts; expert += WARPS) {
        if (counts[expert] == 0) continue;
        uint32_t to = starts[expert];
        for (uint32_t begin = 0; begin < pairs; begin += WARP) {
            const uint32_t pair = begin + threadIdx.x % WARP;
            const bool is_own = pair < pairs && expert_of(args.choice, args.chosen, pair) == expert;
            const uint32_t all = __ballot_sync(ALL_LANES, is_own);
            if (is_own) args.order[to + __popc(all & ((1u << threadIdx.x % WARP) - 1))] = pair;
            to += __popc(all);
        }
    }
}
