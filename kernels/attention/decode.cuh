// Attention of single rows over paged f16 keys and values, on matrix instructions: keys or values are the rows, the
// query heads of a key-value head the columns, so that each is read once.
//
// A block takes 128 positions at a time: each warp scores 16 of them, then each warp mixes the values of all for 16
// elements of the heads. The last block of a row and key-value head to end merges its splits in order. The norm and
// rotation of heads and the rows' places in the cache are done here too, and keys are on their way before the block
// waits for its producers: each row is of another sequence, so all but its own are older than the step, and what tells
// of the rows is in place before any other kernel of the step begins. Where rows may follow each other in a sequence
// (`follows`), the keys of those before are the step's too: the block waits first, and leaves the cache as it is.
//
// What a row gets depends on its own length alone: `attention_prefill.cu` has the same sums in the same order.
#pragma once
#include "attention/kv_pages.cuh"
#include "ptx/mma_f16.cuh"

constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP;
constexpr uint32_t TILE = 16, STEP = WARPS * TILE;
// Query heads of a block.
constexpr uint32_t COLUMNS = 8;
constexpr uint32_t STAGES = 3;
// A maximum holds for half a step.
constexpr uint32_t HALF_WARPS = WARPS / 2;
constexpr uint32_t NONE = 0xffffffffu, HIDDEN = 0x40000000u;
// Splits whose factors the last block holds at a time.
constexpr uint32_t MERGED = 256;

// Shared memory of a block.
template <uint32_t ELEMENTS>
struct Buffers {
    static constexpr uint32_t DIM = ELEMENTS;
    using Cache = Cached;
    static constexpr bool IS_ROTATED = false;
    // Elements between those of lanes l and l + 4, and between the lane's two of a tile.
    static constexpr uint32_t LANES_APART = 1, ROWS_APART = 8;

    static constexpr uint32_t STRIDE = DIM + PAD, STAGE = STEP * STRIDE;
    static constexpr uint32_t BYTES = 2 * STAGES * STAGE + 8 * (DIM / TILE + 2 * WARPS) * WARP + 4 * DIM,
                              WITH_SPARE = BYTES + 2 * STAGE;
    __half *stages;
    uint2 *queries;  // fragments of B, a pair of words a lane for 16 elements
    uint2 *weights;  // the same for 16 keys, of every warp and of two steps
    __half *own_key, *own_value;

    __device__ __forceinline__ explicit Buffers(uint8_t *shared) {
        stages = reinterpret_cast<__half *>(shared);
        queries = reinterpret_cast<uint2 *>(stages + STAGES * STAGE);
        weights = queries + DIM / TILE * WARP;
        own_key = reinterpret_cast<__half *>(weights + 2 * WARPS * WARP), own_value = own_key + DIM;
    }

    __device__ __forceinline__ __half *tile(uint32_t stage, uint32_t index) const {
        return stages + stage * STAGE + index * TILE * STRIDE;
    }
    // Whether the block was given a stage more.
    __device__ __forceinline__ static bool has_spare() {
        uint32_t bytes;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
        return bytes >= WITH_SPARE;
    }
    __device__ __forceinline__ __half *spare_tile(uint32_t index) const {
        return own_value + DIM + index * TILE * STRIDE;
    }
    // Results of the heads, once the stages are free.
    __device__ __forceinline__ float *results() const { return reinterpret_cast<float *>(stages); }
    // For the last block: factors of the splits, and parts on their way.
    static constexpr uint32_t PARTS = STAGES * STAGE / 2 - 2 * COLUMNS * MERGED;
    __device__ __forceinline__ float2 *factors() const { return reinterpret_cast<float2 *>(stages); }
    __device__ __forceinline__ float *parts() const { return reinterpret_cast<float *>(factors() + COLUMNS * MERGED); }
};

// Shared memory of an SM of compute capability 9.0, and what a block there takes beside its own.
constexpr uint32_t PROCESSOR_BYTES = 228 << 10, BLOCK_BYTES = 1 << 10;

// Whether an SM has room for two blocks with so much beside their buffers. Grids count on that: with one alone, long
// contexts are read a fifth slower, and many rows half as fast.
template <uint32_t DIM>
__host__ __device__ constexpr bool fits_twice(uint32_t beside) {
    // The last word tells which block ends last.
    return DIM > 128 || 2 * (Buffers<DIM>::BYTES + beside + sizeof(uint32_t) + BLOCK_BYTES) <= PROCESSOR_BYTES;
}

// A step that is copied: the warp's first position of it, NONE where there is no such step, HIDDEN where its row sees
// none of them, and the page of that.
struct Ahead {
    uint32_t key, page;

    // `first` is that of the step, `seen` the first that the row sees.
    template <typename Cache>
    __device__ __forceinline__ Ahead(uint32_t first, uint32_t seen, uint32_t keys, const Cache &cached)
        : key(NONE), page(0) {
        if (first == NONE) return;
        key = first + threadIdx.x / WARP * TILE;
        // The page may be gone.
        if (key + TILE <= seen) key = HIDDEN;
        else if (key < keys) page = cached.page_of(key);
    }
};

// Starts the copies of the warp's tile, and ends their group. Rows from `limit` on become 0.
template <uint32_t DIM>
__device__ __forceinline__ void start_tile(
    const Cached &cached, const __half *run, const Ahead &ahead, uint32_t limit, __half *to) {
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

// Where a row's own key and value go: a page, and a slot of it.
struct Place {
    uint32_t page, slot;

    template <typename Cache>
    __device__ __forceinline__ Place(const Cache &cached, uint32_t position)
        : page(cached.page_of(position)), slot(position % PAGE_TOKENS) {}
};

// A head of the row's queries, its key or its value, of which a lane has pairs of elements: those that rotate together,
// behind them neighbours.
template <bool PLAIN, uint32_t DIM>
struct Turned {
    static constexpr uint32_t PAIRS = (DIM / 2 + WARP - 1) / WARP;
    using Places = uint32_t[PAIRS];
    const float *x, *weight;
    float a[PAIRS], c[PAIRS], of_a[PAIRS], of_c[PAIRS];

    // Calls `f` with each pair that the lane has.
    template <typename F>
    __device__ __forceinline__ static void each_pair(const F &f) {
#pragma unroll
        for (uint32_t j = 0, i = threadIdx.x % WARP; j < PAIRS; j++, i += WARP) {
            if (i < DIM / 2) f(j, i);
        }
    }

    __device__ __forceinline__ void load_weights(const Places &first, const Places &second) {
        if (PLAIN || weight == nullptr) return;
        each_pair([&](uint32_t j, uint32_t) { of_a[j] = weight[first[j]], of_c[j] = weight[second[j]]; });
    }

    __device__ __forceinline__ void load(const Places &first, const Places &second) {
        each_pair([&](uint32_t j, uint32_t) { a[j] = x[first[j]], c[j] = x[second[j]]; });
    }

    // The factor of the norm. Where the halves of a head rotate together, lanes have their elements in its order.
    __device__ __forceinline__ float factor(const HeadsArgs &in) const {
        if (DIM / 2 % WARP != 0 || in.pairs || in.half_dims != DIM / 2)
            return head_factor(in, x, weight, threadIdx.x % WARP);
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < PAIRS; j++) sum = __fmaf_rn(a[j], a[j], sum);
#pragma unroll
        for (uint32_t j = 0; j < PAIRS; j++) sum = __fmaf_rn(c[j], c[j], sum);
        return head_factor_of(in, warp_sum(sum));
    }

    __device__ __forceinline__ void norm(const HeadsArgs &in) {
        if (PLAIN || weight == nullptr) return;
        const float own = factor(in);
        each_pair([&](uint32_t j, uint32_t) {
            a[j] = __fmul_rn(__fmul_rn(a[j], own), of_a[j]), c[j] = __fmul_rn(__fmul_rn(c[j], own), of_c[j]);
        });
    }

    __device__ __forceinline__ void rotate(const float (&cos)[PAIRS], const float (&sin)[PAIRS], uint32_t half) {
        each_pair([&](uint32_t j, uint32_t i) {
            if (i >= half) return;
            const float turned = __fmaf_rn(a[j], cos[j], -__fmul_rn(c[j], sin[j]));
            c[j] = __fmaf_rn(a[j], sin[j], __fmul_rn(c[j], cos[j])), a[j] = turned;
        });
    }
};

// Norm and rotation of the row's queries, key and value, of which key and value also go to the cache, by one of the
// blocks of a key-value head; or they come from there. Columns without a head are 0. A warp has two of them at most,
// and where there are norms what it reads is on its way at once. `wait` is called once everything is known that
// producers do not tell. PLAIN heads have no norm, and come from producers.
template <bool PLAIN = false, uint32_t DIM, typename Wait>
__device__ __forceinline__ void turn_heads(const HeadsArgs &in, const Buffers<DIM> &b, uint32_t row, const Place &place,
    uint32_t kv_head, const float *q, uint32_t heads, float scale, bool has_own, bool stores, const Wait &wait) {
    using Head = Turned<PLAIN, DIM>;
    constexpr uint32_t PAIRS = Head::PAIRS, MOST = (COLUMNS + 2 + WARPS - 1) / WARPS, AT_ONCE = PLAIN ? 1 : MOST;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = in.half_dims,
                   tasks = heads + (has_own ? 2 : 0);
    __half *queries = reinterpret_cast<__half *>(b.queries);
    for (uint32_t i = threadIdx.x; i < DIM / TILE * WARP; i += THREADS) {
        if (i % WARP / 4 >= heads) b.queries[i] = make_uint2(0, 0);
    }
    uint32_t first[PAIRS], second[PAIRS];
#pragma unroll
    for (uint32_t j = 0, i = lane; j < PAIRS; j++, i += WARP) {
        first[j] = i >= half || in.pairs ? 2 * i : i, second[j] = i >= half || in.pairs ? 2 * i + 1 : i + half;
    }
    __half *cache = reinterpret_cast<__half *>(in.cache) +
        (place.page * in.page_elements + ((size_t)kv_head * PAGE_TOKENS + place.slot) * DIM);
    const size_t from = ((size_t)row * in.kv_heads + kv_head) * DIM;
    // Those that come from producers.
    const uint32_t given = !PLAIN && in.k == nullptr ? heads : tasks;
#pragma unroll 1
    for (uint32_t begin = warp; begin < AT_ONCE * WARPS || begin < tasks; begin += AT_ONCE * WARPS) {
        Head own[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t task = begin + i * WARPS;
            const bool is_query = task < heads, is_key = task == heads;
            own[i].x = is_query ? q + (size_t)task * DIM : (is_key ? in.k : in.v) + from;
            own[i].weight = is_query ? in.q_norm : is_key ? in.k_norm : in.v_norm;
            if (task < given) own[i].load_weights(first, second);
        }
        if (begin == warp) wait();
        float cos[PAIRS], sin[PAIRS];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (begin + i * WARPS < given) own[i].load(first, second);
        }
        Head::each_pair([&](uint32_t j, uint32_t i) {
            if (i < half) cos[j] = in.cos[row * half + i], sin[j] = in.sin[row * half + i];
        });
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t task = begin + i * WARPS;
            const bool is_query = task < heads, is_key = task == heads;
            if (task >= tasks) break;
            __half *to_own = is_key ? b.own_key : b.own_value, *to = cache + (is_key ? in.keys : in.values);
            if (task >= given) {
#pragma unroll 1
                for (uint32_t at = lane; at < DIM; at += WARP) to_own[at] = to[at];
                continue;
            }
            Head &head = own[i];
            head.norm(in);
            if (is_query || is_key) head.rotate(cos, sin, half);
            Head::each_pair([&](uint32_t j, uint32_t) {
                if (is_query) {
                    queries[query_place(task, first[j])] = __float2half_rn(__fmul_rn(head.a[j], scale));
                    queries[query_place(task, second[j])] = __float2half_rn(__fmul_rn(head.c[j], scale));
                    return;
                }
                to_own[first[j]] = __float2half_rn(head.a[j]), to_own[second[j]] = __float2half_rn(head.c[j]);
                if (stores) to[first[j]] = to_own[first[j]], to[second[j]] = to_own[second[j]];
            });
        }
    }
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

// Adds the weighted values of a step, or of its first half, to the warp's elements, which are rescaled before each
// half. All that comes from shared memory is on its way before the first product.
template <uint32_t DIM, uint32_t HALVES>
__device__ __forceinline__ void mix(
    const __half *values, const uint2 *weights, const float2 (&factors)[2], float (&out)[MIXED<DIM>][4]) {
    constexpr uint32_t TILES = HALVES * HALF_WARPS;
    const uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP * TILE;
    const __half *row = values + (lane % 8 + lane / 16 * 8) * Buffers<DIM>::STRIDE + lane / 8 % 2 * 8 + first;
    uint2 p[TILES];
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) p[t] = weights[t * WARP + lane];
#pragma unroll
    for (uint32_t e = 0; e < MIXED<DIM>; e++) {
        if (first + e * WARPS * TILE >= DIM) break;
        uint32_t a[TILES][4];
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
            load_columns(a[t], row + t * TILE * Buffers<DIM>::STRIDE + e * WARPS * TILE);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            if (t % HALF_WARPS == 0) rescale(out[e], factors[t / HALF_WARPS]);
            multiply_add(out[e], a[t], p[t].x, p[t].y);
        }
    }
}

// Sums of the warps in a step, and their maxima, rounded up.
using Sums = float2[WARPS][WARP];
using Maxima = float2[WARPS][COLUMNS / 2];

// Maximum of half a step for the lane's two columns, and of what was before.
__device__ __forceinline__ float2 half_max(const Maxima &maxima, uint32_t half, float2 top) {
#pragma unroll
    for (uint32_t w = 0; w < HALF_WARPS; w++) {
        const float2 other = maxima[half * HALF_WARPS + w][threadIdx.x % 4];
        top.x = fmaxf(top.x, other.x), top.y = fmaxf(top.y, other.y);
    }
    return top;
}

// Adds the sums of half a step, of which those of the first warp are given.
__device__ __forceinline__ void add_half(const float2 *sums, float2 factor, float2 &sum) {
    float2 v = sums[threadIdx.x % WARP];
#pragma unroll
    for (uint32_t w = 1; w < HALF_WARPS; w++) {
        const float2 other = sums[w * WARP + threadIdx.x % WARP];
        v.x = __fadd_rn(v.x, other.x), v.y = __fadd_rn(v.y, other.y);
    }
    sum.x = __fmaf_rn(sum.x, factor.x, v.x), sum.y = __fmaf_rn(sum.y, factor.y, v.y);
}

// Factors of some splits of a head, relative to the maximum of all from `begin` on, which it returns; by a warp.
__device__ __forceinline__ float weigh_splits(
    const float2 *states, float2 *factors, uint32_t first, uint32_t count, uint32_t begin, uint32_t splits) {
    float top = -INFINITY;
    for (uint32_t split = begin + threadIdx.x % WARP; split < splits; split += WARP) {
        const float2 state = __ldcg(states + split);
        top = fmaxf(top, state.x);
        if (split - first < count) factors[split - first] = state;
    }
    top = warp_max(top);
    __syncwarp();
    for (uint32_t i = threadIdx.x % WARP; i < count; i += WARP) factors[i].x = power(factors[i].x - top);
    return top;
}

// Merges a row's splits from `begin` on, by the block that ended last; `first_head` is the block's first in its row.
// PLAIN heads have no sinks.
template <bool PLAIN = false, uint32_t DIM>
__device__ __forceinline__ void merge_splits(const AttentionArgs &args, const Buffers<DIM> &b, size_t head,
    uint32_t first_head, uint32_t heads, uint32_t stride, uint32_t begin, uint32_t splits, float *totals) {
    constexpr uint32_t KEPT = COLUMNS * DIM / THREADS;
    const uint32_t warp = threadIdx.x / WARP, width = heads * DIM, quads = width / 4,
                   at_once = min(Buffers<DIM>::PARTS / width, MERGED);
    float out[KEPT] = {}, sum[KEPT] = {};
    for (uint32_t first = begin; first < splits; first += at_once) {
        const uint32_t count = min(splits - first, at_once);
        const float *mixed = args.mixed + (head * stride + first) * DIM;
        for (uint32_t split = threadIdx.x / quads, at = threadIdx.x % quads; split < count;) {
            const uint32_t i = at * 4;
            copy_or_clear(b.parts() + split * width + i, mixed + (i / DIM * stride + split) * DIM + i % DIM, true);
            split += THREADS / quads, at += THREADS % quads;
            if (at >= quads) split++, at -= quads;
        }
        commit_copies();
        if (warp < heads) {
            const float top = weigh_splits(
                args.states + (head + warp) * stride, b.factors() + warp * MERGED, first, count, begin, splits);
            if (threadIdx.x % WARP == 0) totals[warp] = PLAIN ? 0.0f : sink_weight(args, first_head + warp, top);
        }
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
        if (i % DIM == 0) totals[i / DIM] = __fadd_rn(sum[e], totals[i / DIM]);
    }
}

// The warp's elements of a split, for the block that merges, and the state of the split.
template <typename Space, uint32_t DIM = Space::DIM>
__device__ __forceinline__ void put_part(const AttentionArgs &args, size_t head, uint32_t heads, uint32_t splits,
    uint32_t split, const float (&out)[MIXED<DIM>][4], float2 top, float2 total) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const size_t part = (head + lane % 4 * 2) * splits + split;
#pragma unroll
    for (uint32_t e = 0; e < MIXED<DIM>; e++) {
        const uint32_t element = (warp + e * WARPS) * TILE + lane / 4 * Space::LANES_APART;
        if (element >= DIM) break;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (lane % 4 * 2 + i % 2 < heads)
                args.mixed[(part + i % 2 * splits) * DIM + element + i / 2 * Space::ROWS_APART] = out[e][i];
        }
    }
    if (warp != 0 || lane >= 4) return;
    if (2 * lane < heads) args.states[part] = make_float2(top.x, total.x);
    if (2 * lane + 1 < heads) args.states[part + splits] = make_float2(top.y, total.y);
}

// The same for a block that has the whole row.
template <typename Space, uint32_t DIM = Space::DIM>
__device__ __forceinline__ void put_results(float *results, const float (&out)[MIXED<DIM>][4]) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t e = 0; e < MIXED<DIM>; e++) {
        const uint32_t element = (warp + e * WARPS) * TILE + lane / 4 * Space::LANES_APART;
        if (element >= DIM) break;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            // Merging adds to zero, which has no sign then.
            results[(lane % 4 * 2 + i % 2) * DIM + element + i / 2 * Space::ROWS_APART] = __fadd_rn(out[e][i], 0.0f);
        }
    }
}

// Of the same block the sums of its heads, by which results are divided.
template <bool PLAIN = false>
__device__ __forceinline__ void put_totals(
    const AttentionArgs &args, uint32_t first_head, uint32_t heads, float2 top, float2 sum, float *totals) {
    const uint32_t column = 2 * threadIdx.x;
    if (threadIdx.x >= COLUMNS / 2) return;
    const auto total = [&](uint32_t at, float of, float own) {
        return PLAIN || at >= heads ? own : __fadd_rn(own, sink_weight(args, first_head + at, of));
    };
    totals[column] = total(column, top.x, sum.x), totals[column + 1] = total(column + 1, top.y, sum.y);
}

// Whether the block is the last of its row and key-value head to end; all threads of a block come here.
__device__ __forceinline__ bool ends_last(const AttentionArgs &args, uint32_t row, uint32_t blocks) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // The block's parts are there before it counts, and those of others after.
        uint32_t *ended = args.ended + (size_t)row * gridDim.y + blockIdx.y;
        __threadfence();
        is_last = atomicAdd(ended, 1) == blocks - 1;
        __threadfence();
        if (is_last) *ended = 0;
    }
    __syncthreads();
    return is_last;
}

// Writes the heads, once results and totals are there; rows of a batch may want them in any form.
template <bool ANY_FORM, uint32_t DIM>
__device__ __forceinline__ void put_heads(const AttentionArgs &args, const float *results, uint32_t row,
    uint32_t first_head, uint32_t heads, const float *totals) {
    __syncthreads();
    // Heads have whole blocks of 8-bit values. Those of 64 elements are often no more than a block has threads.
    if constexpr (DIM <= 64) {
#pragma unroll
        for (uint32_t i = threadIdx.x; i < COLUMNS * DIM; i += THREADS) {
            if (i >= heads * DIM) break;
            const float v = __fdiv_rn(results[i], totals[i / DIM]);
            if constexpr (ANY_FORM) emit(args.out, row, first_head * DIM + i, args.in.heads * DIM, v);
            else emit_blocks(args.out, row, first_head * DIM + i, args.in.heads * DIM, v);
        }
    } else {
        const uint32_t quads = heads * DIM / 4;
#pragma unroll
        for (uint32_t i = threadIdx.x; i < COLUMNS * DIM / 4; i += THREADS) {
            if (i / WARP * WARP >= quads) break;
            const bool inside = i < quads;
            const float4 v = inside ? reinterpret_cast<const float4 *>(results)[i] : make_float4(0, 0, 0, 0);
            const float total = inside ? totals[4 * i / DIM] : 1.0f;
            const float4 mixed =
                make_float4(__fdiv_rn(v.x, total), __fdiv_rn(v.y, total), __fdiv_rn(v.z, total), __fdiv_rn(v.w, total));
            emit_quad<ANY_FORM>(args.out, row, first_head * DIM / 4 + i, args.in.heads * DIM, inside, mixed);
        }
    }
}
