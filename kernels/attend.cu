// Causal attention of single rows over paged f16 keys and values, on matrix instructions: keys or values are the rows, the query heads of a
// key-value head the columns, so that each is read once.
//
// The blocks of a row and key-value head share its splits of positions. A block takes 128 positions at a time: each warp scores 16 of them,
// then each warp mixes the values of all for 16 elements of the heads. Copies run ahead in a ring of three stages, across splits. The last block
// to end merges the splits in order. With one row in the batch, the norm and rotation of its heads and its place in the cache are done here
// too, and keys are on their way before the block waits for its producers: all but the row's own are older than the step, and what tells
// of the row is in place before any other kernel of the step begins.
//
// What a row gets depends on its own length alone: `prompt.cu` has the same sums in the same order.
#include "common/cached.cuh"
#include "common/fragments.cuh"

constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP;
constexpr uint32_t TILE = 16, STEP = WARPS * TILE;
// Query heads of a block.
constexpr uint32_t COLUMNS = 8;
constexpr uint32_t STAGES = 3;
// A maximum holds for half a step.
constexpr uint32_t HALF_WARPS = WARPS / 2;
constexpr uint32_t NONE = 0xffffffffu;
// Splits whose factors the last block holds at a time.
constexpr uint32_t MERGED = 256;

// Shared memory of a block.
template <uint32_t DIM>
struct Buffers {
    static constexpr uint32_t STRIDE = DIM + PAD, STAGE = STEP * STRIDE;
    __half *stages;
    uint2 *queries;  // fragments of B, a pair of words a lane for 16 elements
    uint2 *weights;  // the same for 16 keys, of every warp
    __half *own_key, *own_value;

    __device__ __forceinline__ explicit Buffers(uint8_t *shared) {
        stages = reinterpret_cast<__half *>(shared);
        queries = reinterpret_cast<uint2 *>(stages + STAGES * STAGE);
        weights = queries + DIM / TILE * WARP;
        own_key = reinterpret_cast<__half *>(weights + WARPS * WARP), own_value = own_key + DIM;
    }

    __device__ __forceinline__ __half *tile(uint32_t stage, uint32_t index) const { return stages + stage * STAGE + index * TILE * STRIDE; }
    // Results of the heads, once the stages are free.
    __device__ __forceinline__ float *results() const { return reinterpret_cast<float *>(stages); }
    // For the last block: factors of the splits, and parts on their way.
    static constexpr uint32_t PARTS = STAGES * STAGE / 2 - 2 * COLUMNS * MERGED;
    __device__ __forceinline__ float2 *factors() const { return reinterpret_cast<float2 *>(stages); }
    __device__ __forceinline__ float *parts() const { return reinterpret_cast<float *>(factors() + COLUMNS * MERGED); }
};

// The block's way through its splits: a lone block takes them in order; several take the longest first, and turn at the ends.
struct Walk {
    uint32_t keys, splits, turn, split, key, end;

    __device__ __forceinline__ Walk(uint32_t all) : keys(all), splits(splits_of(all)), turn(0) { enter(); }

    __device__ __forceinline__ void enter() {
        const uint32_t blocks = gridDim.x, at = turn % 2 == 0 ? blockIdx.x : blocks - 1 - blockIdx.x, index = turn * blocks + at;
        if (index >= splits) {
            key = NONE;
            return;
        }
        split = blocks == 1 ? index : splits - 1 - index;
        key = split_start(split), end = min(split_start(split + 1), keys);
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

// A step ahead of the one that is computed: the warp's first position of it, and the page of that.
struct Ahead {
    uint32_t key, page;

    __device__ __forceinline__ Ahead(const Walk &walk, const Cached &cached) : key(NONE), page(0) {
        if (walk.key == NONE) return;
        key = walk.key + threadIdx.x / WARP * TILE;
        if (key < walk.keys) page = cached.page_of(key);
    }
};

// Starts the copies of the warp's tile, and ends their group. Rows from `limit` on become 0.
template <uint32_t DIM>
__device__ __forceinline__ void start_tile(const Cached &cached, const __half *run, const Ahead &ahead, uint32_t limit, __half *to) {
    constexpr uint32_t CHUNKS = DIM / 8;
    if (ahead.key != NONE) {
        const uint32_t lane = threadIdx.x % WARP;
        const __half *from = run + ahead.page * cached.page_elements + ahead.key % PAGE_TOKENS * DIM + lane * 8;
        const int rows = limit - ahead.key;
        to += lane * 8;
#pragma unroll
        for (uint32_t i = 0; i < TILE * CHUNKS; i += WARP) {
            const uint32_t row = (i + lane) / CHUNKS;
            copy_or_clear(to + i * 8 + row * PAD, from + i * 8, (int)row < rows);
        }
    }
    commit_copies();
}

// Place of an element of a query among the halves of the fragments.
__device__ __forceinline__ uint32_t query_place(uint32_t column, uint32_t i) {
    return ((i / TILE * WARP + column * 4 + i % 8 / 2) * 2 + i % TILE / 8) * 2 + i % 2;
}

template <uint32_t DIM>
__device__ __forceinline__ void load_queries(const Buffers<DIM> &b, const float *q, uint32_t heads) {
    const float scale = score_scale(DIM);
    __half2 *queries = reinterpret_cast<__half2 *>(b.queries);
#pragma unroll
    for (uint32_t i = 2 * threadIdx.x; i < COLUMNS * DIM; i += 2 * THREADS) {
        const float2 v = i < heads * DIM ? *reinterpret_cast<const float2 *>(q + i) : make_float2(0.0f, 0.0f);
        queries[query_place(i / DIM, i % DIM) / 2] = __floats2half2_rn(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
    }
}

// Norm and rotation of the row's queries and key; key and value also go to the cache, by one of the blocks of a key-value head. Columns without
// a head are 0.
template <uint32_t DIM>
__device__ __forceinline__ void turn_heads(const HeadsArgs &in, const Buffers<DIM> &b, const Row &item, uint32_t kv_head, const float *q, uint32_t heads,
                                           bool has_own, bool stores) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float scale = score_scale(DIM);
    __half *queries = reinterpret_cast<__half *>(b.queries);
    for (uint32_t i = threadIdx.x; i < DIM / TILE * WARP; i += THREADS) {
        if (i % WARP / 4 >= heads) b.queries[i] = make_uint2(0, 0);
    }
    if (warp < heads) {
        const auto take = [&](uint32_t i, float v) { queries[query_place(warp, i)] = __float2half_rn(__fmul_rn(v, scale)); };
        turn_head(in, 0, q + (size_t)warp * DIM, in.q_norm, take);
    }
    const bool has_key = warp == heads % WARPS, has_value = warp == (heads + 1) % WARPS;
    if (!has_own || !(has_key || has_value)) return;
    const uint32_t page = in.tables[(size_t)item.slot * in.table_stride + item.position / PAGE_TOKENS];
    const size_t to = page * in.page_elements + ((size_t)kv_head * PAGE_TOKENS + item.position % PAGE_TOKENS) * DIM;
    __half *cache = reinterpret_cast<__half *>(in.cache) + to;
    const auto put = [&](__half *own, uint64_t side, uint32_t i, float v) {
        own[i] = __float2half_rn(v);
        if (stores) cache[side + i] = own[i];
    };
    if (has_key) turn_head(in, 0, in.k + (size_t)kv_head * DIM, in.k_norm, [&](uint32_t i, float v) { put(b.own_key, in.keys, i, v); });
    if (!has_value) return;
    float v[(DIM + WARP - 1) / WARP];
#pragma unroll
    for (uint32_t i = lane; i < DIM; i += WARP) v[i / WARP] = in.v[(size_t)kv_head * DIM + i];
#pragma unroll
    for (uint32_t i = lane; i < DIM; i += WARP) put(b.own_value, in.values, i, v[i / WARP]);
}

// Puts the row's own key or value in its place of the warp's tile.
template <uint32_t DIM>
__device__ __forceinline__ void put_own(__half *tile, const __half *own, uint32_t row) {
#pragma unroll
    for (uint32_t i = threadIdx.x % WARP; i < DIM; i += WARP) tile[row * (DIM + PAD) + i] = own[i];
    __syncwarp();
}

// Scores of the warp's 16 keys.
template <uint32_t DIM>
__device__ __forceinline__ void score(const Buffers<DIM> &b, const __half *tile, float (&s)[4]) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half *row = tile + lane % TILE * Buffers<DIM>::STRIDE + lane / TILE * 8;
#pragma unroll
    for (uint32_t i = 0; i < DIM / TILE; i++) {
        uint32_t a[4];
        load_rows(a, row + i * TILE);
        const uint2 q = b.queries[i * WARP + lane];
        multiply_add(s, a, q.x, q.y);
    }
}

// Tiles of 16 elements that a warp mixes.
template <uint32_t DIM>
constexpr uint32_t MIXED = (DIM / TILE + WARPS - 1) / WARPS;

// Adds the weighted values of half a step to the warp's elements.
template <uint32_t DIM>
__device__ __forceinline__ void mix(const Buffers<DIM> &b, uint32_t stage, uint32_t half, float (&out)[MIXED<DIM>][4]) {
    const uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP * TILE;
    const __half *row = b.tile(stage, half * HALF_WARPS) + (lane % 8 + lane / 16 * 8) * Buffers<DIM>::STRIDE + lane / 8 % 2 * 8 + first;
    uint2 p[HALF_WARPS];
#pragma unroll
    for (uint32_t t = 0; t < HALF_WARPS; t++) p[t] = b.weights[(half * HALF_WARPS + t) * WARP + lane];
#pragma unroll
    for (uint32_t e = 0; e < MIXED<DIM>; e++) {
        if (first + e * WARPS * TILE >= DIM) break;
        uint32_t a[HALF_WARPS][4];
#pragma unroll
        for (uint32_t t = 0; t < HALF_WARPS; t++) load_columns(a[t], row + t * TILE * Buffers<DIM>::STRIDE + e * WARPS * TILE);
#pragma unroll
        for (uint32_t t = 0; t < HALF_WARPS; t++) multiply_add(out[e], a[t], p[t].x, p[t].y);
    }
}

template <uint32_t TILES>
__device__ __forceinline__ void rescale(float (&out)[TILES][4], float2 factor) {
#pragma unroll
    for (uint32_t e = 0; e < TILES; e++) {
        out[e][0] = __fmul_rn(out[e][0], factor.x), out[e][1] = __fmul_rn(out[e][1], factor.y);
        out[e][2] = __fmul_rn(out[e][2], factor.x), out[e][3] = __fmul_rn(out[e][3], factor.y);
    }
}

// What the warps tell each other in a step.
struct Shares {
    float2 maxima[WARPS][COLUMNS / 2];  // rounded up
    float2 sums[WARPS][WARP];
};

// Maximum of half a step for the lane's two columns.
__device__ __forceinline__ float2 half_max(const Shares &shares, uint32_t half, float2 top) {
#pragma unroll
    for (uint32_t w = 0; w < HALF_WARPS; w++) {
        const float2 other = shares.maxima[half * HALF_WARPS + w][threadIdx.x % 4];
        top.x = fmaxf(top.x, other.x), top.y = fmaxf(top.y, other.y);
    }
    return top;
}

__device__ __forceinline__ void add_half(const Shares &shares, uint32_t half, float2 factor, float2 &sum) {
    float2 v = shares.sums[half * HALF_WARPS][threadIdx.x % WARP];
#pragma unroll
    for (uint32_t w = 1; w < HALF_WARPS; w++) {
        const float2 other = shares.sums[half * HALF_WARPS + w][threadIdx.x % WARP];
        v.x = __fadd_rn(v.x, other.x), v.y = __fadd_rn(v.y, other.y);
    }
    sum.x = __fmaf_rn(sum.x, factor.x, v.x), sum.y = __fmaf_rn(sum.y, factor.y, v.y);
}

// Factors of some splits of a head, relative to the maximum of all; by a warp.
__device__ __forceinline__ void weigh_splits(const float2 *states, float2 *factors, uint32_t first, uint32_t count, uint32_t splits) {
    float top = -INFINITY;
    for (uint32_t split = threadIdx.x % WARP; split < splits; split += WARP) {
        const float2 state = __ldcg(states + split);
        top = fmaxf(top, state.x);
        if (split - first < count) factors[split - first] = state;
    }
    top = warp_max(top);
    __syncwarp();
    for (uint32_t i = threadIdx.x % WARP; i < count; i += WARP) factors[i].x = power(factors[i].x - top);
}

// Merges a row's splits, by the block that ended last.
template <uint32_t DIM>
__device__ __forceinline__ void merge_splits(const AttentionArgs &args, const Buffers<DIM> &b, size_t head, uint32_t heads, uint32_t stride,
                                             uint32_t splits, float *totals) {
    constexpr uint32_t KEPT = COLUMNS * DIM / THREADS;
    const uint32_t warp = threadIdx.x / WARP, width = heads * DIM, quads = width / 4, at_once = min(Buffers<DIM>::PARTS / width, MERGED);
    float out[KEPT] = {}, sum[KEPT] = {};
    for (uint32_t first = 0; first < splits; first += at_once) {
        const uint32_t count = min(splits - first, at_once);
        const float *mixed = args.mixed + (head * stride + first) * DIM;
        for (uint32_t split = threadIdx.x / quads, at = threadIdx.x % quads; split < count;) {
            const uint32_t i = at * 4;
            copy_or_clear(b.parts() + split * width + i, mixed + (i / DIM * stride + split) * DIM + i % DIM, true);
            split += THREADS / quads, at += THREADS % quads;
            if (at >= quads) split++, at -= quads;
        }
        commit_copies();
        if (warp < heads) weigh_splits(args.states + (head + warp) * stride, b.factors() + warp * MERGED, first, count, splits);
        wait_copies<0>();
        __syncthreads();
#pragma unroll
        for (uint32_t e = 0; e < KEPT; e++) {
            const uint32_t i = threadIdx.x + e * THREADS;
            if (i >= width) break;
            const float *part = b.parts() + i;
            const float2 *factor = b.factors() + i / DIM * MERGED;
#pragma unroll 4
            for (uint32_t split = 0; split < count; split++) {
                const float2 f = factor[split];
                out[e] = __fmaf_rn(part[split * width], f.x, out[e]), sum[e] = __fmaf_rn(f.y, f.x, sum[e]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t e = 0; e < KEPT; e++) {
        const uint32_t i = threadIdx.x + e * THREADS;
        if (i >= width) break;
        b.results()[i] = out[e];
        if (i % DIM == 0) totals[i / DIM] = sum[e];
    }
}

template <uint32_t DIM, bool ONE>
__device__ __forceinline__ void attend(const AttentionArgs &args, const Shape &shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Shares shares;
    __shared__ float totals[COLUMNS];
    __shared__ bool is_last;
    const HeadsArgs &in = args.in;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.z;
    const uint32_t group = in.heads / in.kv_heads, chunks = (group + COLUMNS - 1) / COLUMNS, kv_head = blockIdx.y / chunks;
    const uint32_t in_group = blockIdx.y % chunks * COLUMNS, heads = min(COLUMNS, group - in_group);
    const size_t head = (size_t)row * in.heads + kv_head * group + in_group;
    const Buffers<DIM> b(shared);
    if (!ONE) wait_for_producers();
    const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + row));
    const Row item{words.x, words.y, words.z, words.w};
    const uint32_t keys = item.position + 1, limit = ONE ? item.position : keys;
    const Cached cached(in, item.slot, kv_head);

    Walk now(keys), later(keys);
    // The first step, and the two after the one that is computed.
    const Ahead start(later, cached);
    later.advance();
    Ahead next(later, cached);
    later.advance();
    Ahead second(later, cached);
    start_tile<DIM>(cached, cached.keys, start, limit, b.tile(0, warp));
    start_tile<DIM>(cached, cached.values, start, limit, b.tile(1, warp));
    start_tile<DIM>(cached, cached.keys, next, limit, b.tile(2, warp));
    if (ONE) release_and_wait();
    if (now.key == NONE) return;
    const float *q = in.q + head * DIM;
    if (ONE) turn_heads(in, b, item, kv_head, q, heads, gridDim.x == 1 || blockIdx.x == 0, in_group == 0);
    else load_queries(b, q, heads);
    __syncthreads();

    // Whether the block's own result is the row's; without a counter another kernel merges.
    const bool is_whole = gridDim.x == 1 && args.ended != nullptr;
    float out[MIXED<DIM>][4] = {}, all[MIXED<DIM>][4] = {};
    float2 top = make_float2(-INFINITY, -INFINITY), sum = make_float2(0.0f, 0.0f);
    State run[2] = {State{-INFINITY, 0.0f}, State{-INFINITY, 0.0f}};
    uint32_t stage = 0;
    while (now.key != NONE) {
        const uint32_t values = stage == STAGES - 1 ? 0 : stage + 1, first = now.key + warp * TILE;
        const bool has_own = ONE && item.position - first < TILE;
        float s[4] = {};
        wait_copies<2>();
        if (has_own) put_own<DIM>(b.tile(stage, warp), b.own_key, item.position - first);
        score(b, b.tile(stage, warp), s);
        if (first + lane / 4 >= keys) s[0] = s[1] = -INFINITY;
        if (first + lane / 4 + 8 >= keys) s[2] = s[3] = -INFINITY;
        const float2 own = make_float2(column_max(fmaxf(s[0], s[2])), column_max(fmaxf(s[1], s[3])));
        if (lane < COLUMNS / 2) shares.maxima[warp][lane] = make_float2(ceilf(own.x), ceilf(own.y));
        __syncwarp();
        start_tile<DIM>(cached, cached.values, next, limit, b.tile(stage, warp));
        __syncthreads();
        const float2 middle = half_max(shares, 0, top), end = half_max(shares, 1, middle), base = warp < HALF_WARPS ? middle : end;
        s[0] = power_of(s[0] - base.x), s[1] = power_of(s[1] - base.y), s[2] = power_of(s[2] - base.x), s[3] = power_of(s[3] - base.y);
        shares.sums[warp][lane] = make_float2(__fadd_rn(s[0], s[2]), __fadd_rn(s[1], s[3]));
        b.weights[warp * WARP + lane] = make_uint2(transpose(s[0], s[1]), transpose(s[2], s[3]));
        wait_copies<2>();
        if (has_own) put_own<DIM>(b.tile(values, warp), b.own_value, item.position - first);
        __syncthreads();
        const float2 to_middle = make_float2(power(top.x - middle.x), power(top.y - middle.y));
        const float2 to_end = make_float2(power(middle.x - end.x), power(middle.y - end.y));
        rescale(out, to_middle);
        mix(b, values, 0, out);
        rescale(out, to_end);
        mix(b, values, 1, out);
        if (warp == 0) {
            add_half(shares, 0, to_middle, sum);
            add_half(shares, 1, to_end, sum);
        }
        top = end;
        if (now.ends_split()) {
            const float2 total = make_float2(column_sum(sum.x), column_sum(sum.y));
            const float2 x = merge_state(run[0], top.x, total.x), y = merge_state(run[1], top.y, total.y);
            const size_t part = (head + lane % 4 * 2) * shape.splits + now.split;
#pragma unroll
            for (uint32_t e = 0; e < MIXED<DIM>; e++) {
                const uint32_t element = (warp + e * WARPS) * TILE + lane / 4;
                if (element >= DIM) break;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    if (is_whole) all[e][i] = merge_value(all[e][i], out[e][i], i % 2 == 0 ? x : y);
                    else if (lane % 4 * 2 + i % 2 < heads) args.mixed[(part + i % 2 * shape.splits) * DIM + element + i / 2 * 8] = out[e][i];
                    out[e][i] = 0.0f;
                }
            }
            if (!is_whole && warp == 0 && lane < 4) {
                if (2 * lane < heads) args.states[part] = make_float2(top.x, total.x);
                if (2 * lane + 1 < heads) args.states[part + shape.splits] = make_float2(top.y, total.y);
            }
            top = make_float2(-INFINITY, -INFINITY), sum = make_float2(0.0f, 0.0f);
        }
        __syncthreads();
        start_tile<DIM>(cached, cached.keys, second, limit, b.tile(values, warp));
        next = second;
        later.advance();
        second = Ahead(later, cached);
        now.advance();
        stage = stage == 0 ? STAGES - 1 : stage - 1;
    }
    if (args.ended == nullptr) return;
    if (is_whole) {
        if (warp == 0 && lane < 4) totals[2 * lane] = run[0].sum, totals[2 * lane + 1] = run[1].sum;
        float *results = b.results();
#pragma unroll
        for (uint32_t e = 0; e < MIXED<DIM>; e++) {
            const uint32_t element = (warp + e * WARPS) * TILE + lane / 4;
            if (element >= DIM) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) results[(lane % 4 * 2 + i % 2) * DIM + element + i / 2 * 8] = all[e][i];
        }
    } else {
        __syncthreads();
        if (threadIdx.x == 0) {
            // The block's parts are there before it counts, and those of others after.
            uint32_t *ended = args.ended + (size_t)row * gridDim.y + blockIdx.y;
            __threadfence();
            is_last = atomicAdd(ended, 1) == min(gridDim.x, splits_of(keys)) - 1;
            __threadfence();
            if (is_last) *ended = 0;
        }
        __syncthreads();
        if (!is_last) return;
        merge_splits(args, b, head, heads, shape.splits, splits_of(keys), totals);
    }
    __syncthreads();
    // Heads have whole warps of elements.
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < heads * DIM; i += THREADS) {
        emit(args.out, row, (kv_head * group + in_group) * DIM + i, in.heads * DIM, __fdiv_rn(b.results()[i], totals[i / DIM]));
    }
}

#define ATTEND(DIM)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_one_##DIM(const __grid_constant__ AttentionArgs args, Shape shape) {   \
        attend<DIM, true>(args, shape);                                                                                                    \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_many_##DIM(const __grid_constant__ AttentionArgs args, Shape shape) {  \
        attend<DIM, false>(args, shape);                                                                                                   \
    }

ATTEND(64)
ATTEND(80)
ATTEND(96)
ATTEND(128)
ATTEND(256)
