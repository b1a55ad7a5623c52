// Steps of attention in a row: the blocks of a row and key-value head share its splits of positions. Copies run ahead
// in a ring of three stages, across splits. What the stages hold is a matter of the type of the cache.
#pragma once
#include "attention/decode.cuh"

// The block's way through its splits: a lone block takes them in order; several take the longest first, and turn at the
// ends.
struct Walk {
    uint32_t seen, keys, begin, splits, turn, split, key, end;

    // From the first position that the row sees.
    __device__ __forceinline__ Walk(uint32_t first, uint32_t all)
        : seen(first), keys(all), begin(split_of(first)), splits(splits_of(all) - begin), turn(0) {
        enter();
    }

    __device__ __forceinline__ void enter() {
        const uint32_t blocks = gridDim.x, at = turn % 2 == 0 ? blockIdx.x : blocks - 1 - blockIdx.x,
                       index = turn * blocks + at;
        if (index >= splits) {
            key = NONE;
            return;
        }
        split = begin + (blocks == 1 ? index : splits - 1 - index);
        key = max(split_start(split), seen / STEP * STEP), end = min(split_start(split + 1), keys);
    }

    __device__ __forceinline__ bool ends_split() const { return key + STEP >= end; }

    __device__ __forceinline__ void advance() {
        if (key == NONE) return;
        if (!ends_split()) {
            key += STEP;
        } else {
            turn++;
            enter();
        }
    }
};

template <typename Space, bool ANY_FORM>
__device__ __forceinline__ void attend(const AttentionArgs &args, const Shape &shape) {
    constexpr uint32_t DIM = Space::DIM;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Maxima maxima;
    __shared__ Sums sums;
    __shared__ float totals[COLUMNS];
    static_assert(fits_twice<DIM>(sizeof(maxima) + sizeof(sums) + sizeof(totals)), "two blocks share a processor");
    const HeadsArgs &in = args.in;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.z;
    const uint32_t group = in.heads / in.kv_heads, chunks = (group + COLUMNS - 1) / COLUMNS,
                   kv_head = blockIdx.y / chunks;
    const uint32_t in_group = blockIdx.y % chunks * COLUMNS, heads = min(COLUMNS, group - in_group),
                   first_head = kv_head * group + in_group;
    const size_t head = (size_t)row * in.heads + first_head;
    const Space b(shared);
    const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + row));
    const Row item{words.x, words.y, words.z, words.w};
    const uint32_t keys = item.position + 1, limit = item.position, seen = first_seen(args, item.position);
    const typename Space::Cache cached(in, item.slot, kv_head);

    if (args.follows != 0) await_dependencies();
    Walk now(seen, keys), later(seen, keys);
    // The first step, and the two after the one that is computed.
    const Ahead start(later.key, seen, keys, cached);
    later.advance();
    Ahead next(later.key, seen, keys, cached);
    later.advance();
    Ahead second(later.key, seen, keys, cached);
    start_tile<DIM>(cached, cached.keys, start, limit, b.tile(0, warp));
    start_tile<DIM>(cached, cached.values, start, limit, b.tile(1, warp));
    start_tile<DIM>(cached, cached.keys, next, limit, b.tile(2, warp));
    const Place place(cached, item.position);
    launch_then_await();
    if (now.key == NONE) return;
    turn_heads(in, b, row, place, kv_head, in.q + head * DIM, heads, args.scale, gridDim.x == 1 || blockIdx.x == 0,
        in_group == 0 && args.follows == 0, [] {});
    __syncthreads();

    // Whether the block's own result is the row's; without a counter another kernel merges.
    const bool is_whole = gridDim.x == 1 && args.ended != nullptr;
    float out[MIXED<DIM>][4] = {}, all[MIXED<DIM>][4] = {};
    float2 top = make_float2(-INFINITY, -INFINITY), sum = make_float2(0.0f, 0.0f);
    State run[2] = {State{-INFINITY, 0.0f}, State{-INFINITY, 0.0f}};
    uint32_t stage = 0;
    while (now.key != NONE) {
        const uint32_t values = stage == STAGES - 1 ? 0 : stage + 1, first = now.key + warp * TILE;
        const bool has_own = item.position - first < TILE;
        float s[4] = {};
        wait_copies<2>();
        if (has_own) put_own<DIM>(b.tile(stage, warp), b.own_key, item.position - first);
        score(b, b.tile(stage, warp), s);
        // Those that the row does not see wrap around.
        if (first + lane / 4 - seen >= keys - seen) s[0] = s[1] = -INFINITY;
        if (first + lane / 4 + 8 - seen >= keys - seen) s[2] = s[3] = -INFINITY;
        const float2 own = make_float2(column_max(fmaxf(s[0], s[2])), column_max(fmaxf(s[1], s[3])));
        if (lane < COLUMNS / 2) maxima[warp][lane] = make_float2(ceilf(own.x), ceilf(own.y));
        __syncwarp();
        start_tile<DIM>(cached, cached.values, next, limit, b.tile(stage, warp));
        __syncthreads();
        const float2 middle = half_max(maxima, 0, top), end = half_max(maxima, 1, middle),
                     base = base_of(warp < HALF_WARPS ? middle : end);
        s[0] = power_of(s[0] - base.x), s[1] = power_of(s[1] - base.y), s[2] = power_of(s[2] - base.x),
        s[3] = power_of(s[3] - base.y);
        sums[warp][lane] = make_float2(__fadd_rn(s[0], s[2]), __fadd_rn(s[1], s[3]));
        b.weights[warp * WARP + lane] = make_uint2(transpose(s[0], s[1]), transpose(s[2], s[3]));
        wait_copies<2>();
        if (has_own) put_own<DIM>(b.tile(values, warp), b.own_value, item.position - first);
        __syncthreads();
        const float2 factors[2] = {factor_between(top, middle), factor_between(middle, end)};
        mix<DIM, 2>(b.tile(values, 0), b.weights, factors, out);
        if (warp == 0) {
            add_half(sums[0], factors[0], sum);
            add_half(sums[HALF_WARPS], factors[1], sum);
        }
        top = end;
        if (now.ends_split()) {
            const float2 total = make_float2(column_sum(sum.x), column_sum(sum.y));
            const float2 x = merge_state(run[0], top.x, total.x), y = merge_state(run[1], top.y, total.y);
            if (!is_whole) put_part<Space>(args, head, heads, shape.splits, now.split, out, top, total);
#pragma unroll
            for (uint32_t e = 0; e < MIXED<DIM>; e++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    if (is_whole) all[e][i] = merge_value(all[e][i], out[e][i], i % 2 == 0 ? x : y);
                    out[e][i] = 0.0f;
                }
            }
            top = make_float2(-INFINITY, -INFINITY), sum = make_float2(0.0f, 0.0f);
        }
        __syncthreads();
        start_tile<DIM>(cached, cached.keys, second, limit, b.tile(values, warp));
        next = second;
        later.advance();
        second = Ahead(later.key, seen, keys, cached);
        now.advance();
        stage = stage == 0 ? STAGES - 1 : stage - 1;
    }
    if (args.ended == nullptr) return;
    if (is_whole) {
        put_totals(
            args, first_head, heads, make_float2(run[0].max, run[1].max), make_float2(run[0].sum, run[1].sum), totals);
        put_results<Space>(b.results(), all);
    } else {
        if (!ends_last(args, row, min(gridDim.x, now.splits))) return;
        merge_splits(args, b, head, first_head, heads, shape.splits, now.begin, splits_of(keys), totals);
    }
    if constexpr (Space::IS_ROTATED) b.rotate_results(heads);
    put_heads<ANY_FORM, DIM>(args, b.results(), row, first_head, heads, totals);
}
