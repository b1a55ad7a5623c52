// The pairs of a batch in the order of their experts, and tiles of some pairs of one expert each: a counting sort by
// one block, at most 65,535 pairs. Pairs of one expert keep their order.
#include "experts/choice.cuh"

struct OrderArgs {
    const float *choice;
    uint32_t *order;    // written: pairs by experts
    ExpertTile *tiles;  // written
    uint32_t *count;    // written: how many tiles
    uint32_t experts, chosen;
    uint32_t widths[3];  // pairs a tile at most
    uint32_t rows[2];    // those from which on the second width counts, and the third
    uint32_t pad;
};
static_assert(sizeof(OrderArgs) == 64, "as in args.rs");

constexpr uint32_t THREADS = 1024, WARPS = THREADS / WARP, MOST_EXPERTS = 1024;
// Warps that each sort a part of the pairs.
constexpr uint32_t PARTS = 16;

// The sum of `v` over the threads before this one; all of a block call it once.
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
    return sum - v + __reduce_add_sync(ALL_LANES, lane < warp ? shares[lane] : 0);
}

// Calls `f` with each pair from `begin` to `end`, its expert, and the lanes that have the same; by a whole warp, 32
// pairs at a time and in their order.
template <typename F>
__device__ __forceinline__ void each_pair(const OrderArgs &args, uint32_t begin, uint32_t end, const F &f) {
    const auto expert_at = [&](uint32_t pair) { return pair < end ? expert_of(args.choice, args.chosen, pair) : 0; };
    uint32_t pair = begin + threadIdx.x % WARP, next = expert_at(pair);
    for (uint32_t left = begin < end ? end - begin : 0; left > 0; left -= min(left, (uint32_t)WARP), pair += WARP) {
        const uint32_t expert = next, active = left < WARP ? (1u << left) - 1 : ALL_LANES;
        next = expert_at(pair + WARP);
        if (pair < end) f(pair, expert, __match_any_sync(active, expert));
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    expert_order(const __grid_constant__ OrderArgs args, Shape shape) {
    // Pairs of each expert in each part, and then the place of the next one.
    __shared__ uint16_t places[PARTS][MOST_EXPERTS];
    __shared__ uint32_t shares[WARPS];
    const uint32_t expert = threadIdx.x, part = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (uint32_t i = 0; i < PARTS; i++) places[i][expert] = 0;
    await_then_launch();
    __syncthreads();
    const uint32_t pairs = shape.rows * args.chosen,
                   width = args.widths[(shape.rows >= args.rows[0]) + (shape.rows >= args.rows[1])];
    const uint32_t each = (pairs + PARTS * WARP - 1) / (PARTS * WARP) * WARP, begin = part * each,
                   end = part < PARTS ? min(begin + each, pairs) : begin;
    const auto is_first = [&](uint32_t same) { return (same & ((1u << lane) - 1)) == 0; };
    each_pair(args, begin, end, [&](uint32_t, uint32_t own, uint32_t same) {
        if (is_first(same)) places[part][own] += __popc(same);
    });
    __syncthreads();
    // A thread an expert.
    uint32_t count = 0;
    for (uint32_t i = 0; i < PARTS; i++) count += places[i][expert];
    const uint32_t tiles = (count + width - 1) / width;
    // Both are added at once: neither has more than 16 bits.
    const uint32_t before = sum_before(count << 16 | tiles, shares), first_tile = before & 0xffff;
    uint32_t first = before >> 16;
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t done = i * width;
        args.tiles[first_tile + i] = ExpertTile{expert, first + done, min(width, count - done), 0};
    }
    if (expert == THREADS - 1) *args.count = first_tile + tiles;
    for (uint32_t i = 0; i < PARTS; i++) {
        const uint32_t own = places[i][expert];
        places[i][expert] = (uint16_t)first, first += own;
    }
    __syncthreads();
    each_pair(args, begin, end, [&](uint32_t pair, uint32_t own, uint32_t same) {
        const uint32_t place = places[part][own];
        args.order[place + __popc(same & ((1u << lane) - 1))] = pair;
        __syncwarp(same);
        if (is_first(same)) places[part][own] = (uint16_t)(place + __popc(same));
    });
}
