// Attention of rows whose context has few splits, each with a block of its own: both steps of a split at once, in the
// order of `attention_decode.cu`. Single rows that have but one have kernels of their own (attention_single_split.cu).
//
// PLAIN heads have neither norms nor sinks, and no window that ends within these splits; every row brings its key and
// value, and follows none: code for these, though nobody runs it, takes up to 1 % of a step of a small model.
//
// Where a row's splits are a cluster, its blocks send each other the parts of what each of them merges, so that nothing
// goes by way of the device's memory, and all of them merge.
#include "attention/decode.cuh"
#include "attention/cluster_merge.cuh"

template <uint32_t DIM, bool ANY_FORM, bool PLAIN, bool IN_CLUSTER = false>
__device__ __forceinline__ void attend_split(const AttentionArgs &args, const Shape &shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Maxima maxima[2];
    __shared__ float totals[COLUMNS];
    static_assert(IN_CLUSTER || fits_twice<DIM>(sizeof(maxima) + sizeof(totals)), "two blocks share a processor");
    ClusterMerge<DIM, IN_CLUSTER> merge;
    merge.begin();
    const HeadsArgs &in = args.in;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, split = blockIdx.x, row = blockIdx.z;
    const uint32_t group = in.heads / in.kv_heads, chunks = (group + COLUMNS - 1) / COLUMNS,
                   kv_head = blockIdx.y / chunks;
    const uint32_t in_group = blockIdx.y % chunks * COLUMNS, heads = min(COLUMNS, group - in_group),
                   first_head = kv_head * group + in_group;
    const size_t head = (size_t)row * in.heads + first_head;
    const Buffers<DIM> b(shared);
    const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + row));
    const Row item{words.x, words.y, words.z, words.w};
    const uint32_t position = item.position, keys = position + 1, first = split * SHORT_SPLIT,
                   own_first = first + warp * TILE;
    const uint32_t seen = PLAIN ? 0 : first_seen(args, position);
    const bool follows = !PLAIN && args.follows != 0;
    const Cached cached(in, item.slot, kv_head);
    // Stages: keys of the first step, later values of the second, unless these have a stage of their own; values of the
    // first; keys of the second.
    const bool has_two = first + STEP < keys, has_room = Buffers<DIM>::has_spare();
    __half *far_values = has_room ? b.spare_tile(0) : b.tile(0, 0),
           *far_own = far_values + warp * TILE * Buffers<DIM>::STRIDE;
    if (follows) await_dependencies();
    if (first < keys && first + SHORT_SPLIT > seen) {
        const Ahead near(first, seen, keys, cached), far(first + STEP, seen, keys, cached);
        // Half of the second step may have no key: its tiles are then neither copied nor read.
        const bool has_half = first + STEP + STEP / 2 < keys, has_far = warp < HALF_WARPS ? has_two : has_half;
        const auto start_far = [&](const __half *run, __half *to) {
            if (has_far) start_tile<DIM>(cached, run, far, position, to);
            else commit_copies();
        };
        start_tile<DIM>(cached, cached.keys, near, position, b.tile(0, warp));
        start_far(cached.keys, b.tile(2, warp));
        start_tile<DIM>(cached, cached.values, near, position, b.tile(1, warp));
        if (has_room) start_far(cached.values, far_own);
        const Place place(cached, position);
        turn_heads<PLAIN>(in, b, row, place, kv_head, in.q + head * DIM, heads, args.scale,
            position - first < SHORT_SPLIT, in_group == 0 && !follows, [] { launch_then_await(); });
        __syncthreads();

        // The own key is one of the warp's, in one of the steps.
        const uint32_t own = position - own_first, own_far = own - STEP;
        if (has_room) wait_copies<2>();
        else wait_copies<1>();
        if (own < TILE) put_own<DIM>(b.tile(0, warp), b.own_key, own);
        if (own_far < TILE) put_own<DIM>(b.tile(2, warp), b.own_key, own_far);
        float s[2][4] = {};
        score(b, b.tile(0, warp), s[0]);
        if (has_far) score(b, b.tile(2, warp), s[1]);
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            const uint32_t key = own_first + step * STEP + lane / 4;
            // Those that the row does not see wrap around.
            if (key - seen >= keys - seen) s[step][0] = s[step][1] = -INFINITY;
            if (key + 8 - seen >= keys - seen) s[step][2] = s[step][3] = -INFINITY;
            const float2 most =
                make_float2(column_max(fmaxf(s[step][0], s[step][2])), column_max(fmaxf(s[step][1], s[step][3])));
            if (lane < COLUMNS / 2) maxima[step][warp][lane] = make_float2(ceilf(most.x), ceilf(most.y));
        }
        __syncwarp();
        if (!has_room) start_far(cached.values, far_own);
        __syncthreads();
        // Where the keys of the second step were.
        float2 *sums = reinterpret_cast<float2 *>(b.tile(2, 0));
        float2 tops[4];
        float2 top = make_float2(-INFINITY, -INFINITY);
#pragma unroll
        for (uint32_t half = 0; half < 4; half++) tops[half] = top = half_max(maxima[half / 2], half % 2, top);
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            const float2 base = base_of(warp < HALF_WARPS ? tops[2 * step] : tops[2 * step + 1]);
            float (&v)[4] = s[step];
            v[0] = power_of(v[0] - base.x), v[1] = power_of(v[1] - base.y), v[2] = power_of(v[2] - base.x),
            v[3] = power_of(v[3] - base.y);
            sums[(step * WARPS + warp) * WARP + lane] = make_float2(__fadd_rn(v[0], v[2]), __fadd_rn(v[1], v[3]));
            b.weights[(step * WARPS + warp) * WARP + lane] = make_uint2(transpose(v[0], v[1]), transpose(v[2], v[3]));
        }
        // What is still on its way has a wait of its own.
        const bool waits = has_two && !has_room;
        if (waits) wait_copies<1>();
        else wait_copies<0>();
        if (own < TILE) put_own<DIM>(b.tile(1, warp), b.own_value, own);
        if (!waits && own_far < TILE) put_own<DIM>(far_own, b.own_value, own_far);
        __syncthreads();
        float out[MIXED<DIM>][4] = {};
        const float2 none = make_float2(-INFINITY, -INFINITY);
        const float2 factors[2][2] = {{factor_between(none, tops[0]), factor_between(tops[0], tops[1])},
            {factor_between(tops[1], tops[2]), factor_between(tops[2], tops[3])}};
        mix<DIM, 2>(b.tile(1, 0), b.weights, factors[0], out);
        if (waits) {
            wait_copies<0>();
            if (own_far < TILE) put_own<DIM>(far_own, b.own_value, own_far);
            __syncthreads();
        }
        if (has_half) mix<DIM, 2>(far_values, b.weights + WARPS * WARP, factors[1], out);
        else if (has_two) mix<DIM, 1>(far_values, b.weights + WARPS * WARP, factors[1], out);
        float2 sum = make_float2(0.0f, 0.0f);
        if (warp == 0) {
#pragma unroll
            for (uint32_t half = 0; half < 4; half++)
                add_half(sums + half * HALF_WARPS * WARP, factors[half / 2][half % 2], sum);
        }
        const float2 total = make_float2(column_sum(sum.x), column_sum(sum.y));
        // Without a counter another kernel merges.
        if (gridDim.x == 1 && args.ended != nullptr) {
            // Behind the sums nobody reads any more.
            float *results = reinterpret_cast<float *>(sums + 2 * WARPS * WARP);
            put_totals<PLAIN>(args, first_head, heads, top, total, totals);
            put_results<Buffers<DIM>>(results, out);
            put_heads<ANY_FORM, DIM>(args, results, row, first_head, heads, totals);
            return;
        }
        if constexpr (IN_CLUSTER) {
            merge.meet();
            merge.send(heads, out, top, total);
            merge.template finish<PLAIN>(args, row, first_head, heads, split_of(seen), splits_of(keys));
            return;
        }
        put_part<Buffers<DIM>>(args, head, heads, shape.splits, split, out, top, total);
        if (args.ended == nullptr || !ends_last(args, row, splits_of(keys) - split_of(seen))) return;
        merge_splits<PLAIN>(args, b, head, first_head, heads, shape.splits, split_of(seen), splits_of(keys), totals);
        put_heads<ANY_FORM, DIM>(args, b.results(), row, first_head, heads, totals);
        return;
    }
    launch_then_await();
    if constexpr (IN_CLUSTER) {
        merge.meet();
        merge.template finish<PLAIN>(args, row, first_head, heads, split_of(seen), splits_of(keys));
    }
}

#define ATTENTION_DECODE_CLUSTER(family, file, name, DIM, PLAIN)        \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2)    \
        name(const __grid_constant__ AttentionArgs args, Shape shape) { \
        attend_split<DIM, false, PLAIN, HAS_CLUSTERS>(args, shape);     \
    }
#define ATTENTION_DECODE_SPLIT(family, file, name, DIM, ANY_FORM, PLAIN) \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)             \
        name(const __grid_constant__ AttentionArgs args, Shape shape) {  \
        attend_split<DIM, ANY_FORM, PLAIN>(args, shape);                 \
    }
#include "kernels.def"
