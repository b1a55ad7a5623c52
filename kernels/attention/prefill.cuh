// Attention of many rows over paged keys and values, on matrix instructions: keys or values are the rows, queries the
// columns. What the stages hold is a matter of the type of the cache. Rows see the keys up to their own, or some that
// follow in the pass too.
//
// A block takes a stretch of rows with all query heads of a key-value head, and reads keys and values once for them;
// where the rows belong to several sequences, it takes these in turn. Each warp keeps its own columns from the scores
// to the mixed values (the loop of FlashAttention-2, Dao, 2023), 64 positions at a time. Sums have the order of
// `attention_decode.cu`: what a row gets does not depend on how it came to be evaluated.
#pragma once
#include "attention/kv_pages.cuh"
#include "ptx/mma_f16.cuh"

constexpr uint32_t TILE = 16, STEP = 64, TILES = STEP / TILE;
// Keys or values of a step, on their way or in use.
constexpr uint32_t STAGES = 4;
constexpr uint32_t GROUP_COLUMNS = 8;
// Queries of a block.
constexpr uint32_t WIDTH = 64;

// Groups of columns of a warp, and threads of a block: as many columns a warp as its registers hold.
template <int DIM>
constexpr int GROUPS = DIM > 128 ? 1 : 2;
template <int DIM>
constexpr uint32_t THREADS = WIDTH / (GROUPS<DIM> * GROUP_COLUMNS) * WARP;

// What a warp knows of its groups of columns; a lane has the columns 2 (l % 4) and the next of each.
template <int DIM>
struct Columns {
    static constexpr int COUNT = GROUPS<DIM>;
    uint32_t queries[COUNT][DIM / TILE][2];  // fragments of B
    uint32_t weights[COUNT][TILES][2];
    float out[COUNT][DIM / TILE][4];
    float top[COUNT][2], sum[COUNT][2];
    State run[COUNT][2];
    int seen[COUNT]
            [2];  // the first key that the query may see, before 0 too; without any where it is not of this sequence
};

// Stages of f16, which hold the rows of pages as they are.
template <int ELEMENTS>
struct Stages {
    static constexpr int DIM = ELEMENTS;
    using Cache = Cached;
    using Element = __half;
    static constexpr uint32_t STAGE = STEP * (DIM + PAD);
    static constexpr bool IS_ROTATED = false;
    // Elements between those of lanes l and l + 4, and between the lane's two of a tile.
    static constexpr uint32_t LANES_APART = 1, ROWS_APART = 8;
};

// Bytes of the stages, behind which the results lie.
template <int DIM>
constexpr uint32_t STAGES_BYTES = 2 * STAGES * Stages<DIM>::STAGE;

template <int DIM>
__device__ __forceinline__ void start_step(
    const Cached &cached, const __half *run, uint32_t page, uint32_t first, uint32_t keys, bool is_seen, __half *to) {
    constexpr uint32_t CHUNKS = DIM / 8, ROWS = STEP / 2;
    // Each half of the block copies a page.
    const uint32_t half = threadIdx.x / (THREADS<DIM> / 2), thread = threadIdx.x % (THREADS<DIM> / 2);
    const __half *from = run + page * cached.page_elements;
    to += half * ROWS * (DIM + PAD);
#pragma unroll
    for (uint32_t i = thread; i < ROWS * CHUNKS; i += THREADS<DIM> / 2) {
        const uint32_t row = i / CHUNKS;
        copy_or_clear(
            to + row * (DIM + PAD) + i % CHUNKS * 8, from + i * 8, is_seen && first + half * ROWS + row < keys);
    }
}

template <int DIM>
__device__ __forceinline__ void load_queries(
    const HeadsArgs &in, Columns<DIM> &c, uint32_t first, uint32_t kv_head, uint32_t rows, float scale) {
    const uint32_t lane = threadIdx.x % WARP, group = in.heads / in.kv_heads;
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
        const uint32_t column = first + n * GROUP_COLUMNS + lane / 4, row = column / group;
        const float *q = in.q + ((size_t)row * in.heads + kv_head * group + column % group) * DIM + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < DIM / TILE; i++) {
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const float2 v =
                    row < rows ? *reinterpret_cast<const float2 *>(q + i * TILE + part * 8) : make_float2(0.0f, 0.0f);
                const __half2 pair = __floats2half2_rn(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
                c.queries[n][i][part] = reinterpret_cast<const uint32_t &>(pair);
            }
        }
    }
}

// Scores a step of keys, and turns them into weights; a query sees `width` keys from its first one on, of those that
// are before `end`.
template <int DIM, typename Element>
__device__ __forceinline__ void score_step(
    const AttentionArgs &args, Columns<DIM> &c, const Element *keys, uint32_t first, bool masks, uint32_t end) {
    const uint32_t lane = threadIdx.x % WARP;
    float s[GROUPS<DIM>][TILES][4] = {};
    if constexpr (sizeof(Element) == sizeof(__half)) {
        const __half *row = keys + lane % TILE * (DIM + PAD) + lane / TILE * 8;
#pragma unroll
        for (uint32_t i = 0; i < DIM / TILE; i++) {
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                uint32_t a[4];
                load_rows(a, row + t * TILE * (DIM + PAD) + i * TILE);
#pragma unroll
                for (int n = 0; n < GROUPS<DIM>; n++) multiply_add(s[n][t], a, c.queries[n][i][0], c.queries[n][i][1]);
            }
        }
    } else {
        score_keys(c, keys, s);
    }
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
        if (masks) {
            const uint32_t seen[2] = {(uint32_t)c.seen[n][0], (uint32_t)c.seen[n][1]},
                           width[2] = {min(args.width, end - seen[0]), min(args.width, end - seen[1])};
#pragma unroll
            for (uint32_t i = 0; i < TILES * 4; i++) {
                const uint32_t key = first + i / 4 * TILE + lane / 4 + i % 4 / 2 * 8;
                if (key - seen[i % 2] >= width[i % 2]) s[n][i / 4][i % 4] = -INFINITY;
            }
        }
        float factor[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float max = fmaxf(s[n][0][j], s[n][0][j + 2]);
#pragma unroll
            for (uint32_t t = 1; t < TILES; t++) max = fmaxf(max, fmaxf(s[n][t][j], s[n][t][j + 2]));
            const float top = fmaxf(c.top[n][j], ceilf(column_max(max)));
            factor[j] = power(c.top[n][j] - top);
            c.top[n][j] = top;
            // Nothing but masked keys so far: their weights are 0.
            const float base = top == -INFINITY ? 0.0f : top;
            float sum = 0.0f;
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                s[n][t][j] = power_of(s[n][t][j] - base), s[n][t][j + 2] = power_of(s[n][t][j + 2] - base);
                const float both = __fadd_rn(s[n][t][j], s[n][t][j + 2]);
                sum = t == 0 ? both : __fadd_rn(sum, both);
            }
            c.sum[n][j] = __fmaf_rn(c.sum[n][j], factor[j], sum);
        }
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            c.weights[n][t][0] = transpose(s[n][t][0], s[n][t][1]),
            c.weights[n][t][1] = transpose(s[n][t][2], s[n][t][3]);
        }
        if (__any_sync(ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (uint32_t i = 0; i < DIM / TILE * 4; i++)
                c.out[n][i / 4][i % 4] = __fmul_rn(c.out[n][i / 4][i % 4], factor[i % 2]);
        }
    }
}

template <int DIM>
__device__ __forceinline__ void mix_step(Columns<DIM> &c, const __half *values) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half *row = values + (lane % 8 + lane / 16 * 8) * (DIM + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
#pragma unroll
        for (uint32_t i = 0; i < DIM / TILE; i++) {
            uint32_t a[4];
            load_columns(a, row + t * TILE * (DIM + PAD) + i * TILE);
#pragma unroll
            for (int n = 0; n < GROUPS<DIM>; n++) multiply_add(c.out[n][i], a, c.weights[n][t][0], c.weights[n][t][1]);
        }
    }
}

// Adds a finished split to the warp's results, which lie in shared memory, a row of DIM + 4 for each column.
template <typename Space, int DIM = Space::DIM>
__device__ __forceinline__ void end_split(Columns<DIM> &c, float *results, bool is_first) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
        float2 factor[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            factor[j] = merge_state(c.run[n][j], c.top[n][j], column_sum(c.sum[n][j]));
            c.top[n][j] = -INFINITY, c.sum[n][j] = 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < DIM / TILE * 4; i++) {
            float *at = results + (n * GROUP_COLUMNS + lane % 4 * 2 + i % 2) * (DIM + 4) + i / 4 * TILE +
                lane / 4 * Space::LANES_APART + i % 4 / 2 * Space::ROWS_APART;
            *at = merge_value(is_first ? 0.0f : *at, c.out[n][i / 4][i % 4], factor[i % 2]);
            c.out[n][i / 4][i % 4] = 0.0f;
        }
    }
}

// Walks over `keys` keys of a sequence from `seen` on for the columns that belong to it.
template <typename Space, int DIM = Space::DIM>
__device__ __forceinline__ void walk(const AttentionArgs &args, const typename Space::Cache &cached, Columns<DIM> &c,
    typename Space::Element *stages, float *results, uint32_t seen, uint32_t keys) {
    constexpr uint32_t STAGE = Space::STAGE;
    int least = 0x7fffffff, most = -0x7fffffff;
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            c.top[n][j] = -INFINITY, c.sum[n][j] = 0.0f, c.run[n][j] = State{-INFINITY, 0.0f};
            least = min(least, c.seen[n][j]), most = max(most, c.seen[n][j]);
        }
#pragma unroll
        for (uint32_t i = 0; i < DIM / TILE * 4; i++) c.out[n][i / 4][i % 4] = 0.0f;
    }
    most = __reduce_max_sync(ALL_LANES, most), least = __reduce_min_sync(ALL_LANES, least);
    // Each step has two items, of keys and of values.
    const uint32_t begin = seen / STEP * 2, own = threadIdx.x / (THREADS<DIM> / 2) * PAGE_TOKENS;
    const auto exists = [&](uint32_t item) { return item / 2 * STEP < keys; };
    // Pages that no row sees may be gone.
    const auto is_seen = [&](uint32_t item) { return item / 2 * STEP + own + PAGE_TOKENS > seen; };
    const auto page_of = [&](uint32_t item) {
        return item / 2 * STEP + own < keys && is_seen(item) ? cached.page_of(item / 2 * STEP + own) : 0;
    };
    const auto start = [&](uint32_t item, uint32_t page) {
        const typename Space::Element *run = item % 2 == 0 ? cached.keys : cached.values;
        if (exists(item))
            start_step<DIM>(cached, run, page, item / 2 * STEP, keys, is_seen(item), stages + item % STAGES * STAGE);
        commit_copies();
    };
    // The last walk's stages are free when all warps are here.
    __syncthreads();
#pragma unroll
    for (uint32_t item = begin; item < begin + STAGES - 1; item++) start(item, page_of(item));
    const uint32_t first_split = split_of(seen);
    uint32_t page = page_of(begin + STAGES - 1), split = first_split;
    for (uint32_t item = begin; exists(item); item++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        start(item + STAGES - 1, page);
        page = page_of(item + STAGES);
        const int first = item / 2 * STEP, next = first + STEP;
        const typename Space::Element *stage = stages + item % STAGES * STAGE;
        if (first >= most + (int)args.width) continue;
        if (item % 2 == 0) {
            const bool masks = first < most || next > least + (int)args.width || next > (int)keys;
            score_step(args, c, stage, first, masks, keys);
            continue;
        }
        mix_step(c, stage);
        // Keys that follow a warp's last one change nothing, so its last split may end before theirs does.
        if (next == (int)split_start(split + 1) || next >= most + (int)args.width || next >= (int)keys) {
            end_split<Space>(c, results, split == first_split);
            split++;
        }
    }
}

// Divides by the sums, and writes the columns of this sequence.
template <int DIM>
__device__ __forceinline__ void finish(const AttentionArgs &args, const Columns<DIM> &c, const float *results,
    uint32_t first, uint32_t kv_head, uint32_t start, uint32_t end, uint32_t stride) {
    const HeadsArgs &in = args.in;
    const uint32_t lane = threadIdx.x % WARP, group = in.heads / in.kv_heads;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
        for (uint32_t j = 0; j < GROUP_COLUMNS; j++) {
            const uint32_t column = first + n * GROUP_COLUMNS + j, row = column / group,
                           head = kv_head * group + column % group;
            const float even = __shfl_sync(ALL_LANES, c.run[n][0].sum, j / 2),
                        odd = __shfl_sync(ALL_LANES, c.run[n][1].sum, j / 2);
            const float even_top = __shfl_sync(ALL_LANES, c.run[n][0].max, j / 2),
                        odd_top = __shfl_sync(ALL_LANES, c.run[n][1].max, j / 2);
            if (row < start || row >= end) continue;
            const float top = j % 2 == 0 ? even_top : odd_top, own = j % 2 == 0 ? even : odd;
            const float *from = results + (n * GROUP_COLUMNS + j) * (DIM + 4);
            if constexpr (DIM % WARP == 0) {
                const float sum = __fadd_rn(own, sink_weight(args, head, top));
#pragma unroll
                for (uint32_t i = lane; i < DIM; i += WARP)
                    emit(args.out, row, head * DIM + i, in.heads * DIM, __fdiv_rn(from[i], sum));
            } else {
                const size_t part = ((size_t)row * in.heads + head) * stride;
                for (uint32_t i = lane; i < DIM; i += WARP) args.mixed[part * DIM + i] = from[i];
                if (lane == 0) args.states[part] = make_float2(top, own);
            }
        }
    }
}

template <typename Space>
__device__ __forceinline__ void attend(const AttentionArgs &args, const Shape &shape) {
    constexpr int DIM = Space::DIM;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint32_t positions[WIDTH], slots[WIDTH];  // of the block's rows
    await_then_launch();
    const HeadsArgs &in = args.in;
    // The last rows see the most keys: they go first.
    const uint32_t group = in.heads / in.kv_heads, kv_head = blockIdx.y, block = (gridDim.x - 1 - blockIdx.x) * WIDTH;
    const uint32_t first_row = block / group, last_row = min((block + WIDTH - 1) / group, shape.rows - 1),
                   count = last_row - first_row + 1;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS<DIM>) {
        const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + first_row + i));
        positions[i] = words.y, slots[i] = words.z;
    }
    typename Space::Element *stages = reinterpret_cast<typename Space::Element *>(shared);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, own = warp * GROUPS<DIM> * GROUP_COLUMNS,
                   first = block + own;
    float *results = reinterpret_cast<float *>(shared) + STAGES_BYTES<DIM> / 4 + own * (DIM + 4);
    Columns<DIM> c;
    if constexpr (Space::IS_ROTATED) load_rotated(in, c, results, first, kv_head, shape.rows, args.scale);
    else load_queries<DIM>(in, c, first, kv_head, shape.rows, args.scale);
    __syncthreads();
    for (uint32_t start = 0, end; start < count; start = end) {
        const uint32_t slot = slots[start];
        end = count;
        // The rows of a sequence stand side by side.
        while (slots[end - 1] != slot) end--;
#pragma unroll
        for (int n = 0; n < GROUPS<DIM>; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t row = (first + n * GROUP_COLUMNS + lane % 4 * 2 + j) / group - first_row;
                c.seen[n][j] = row >= start && row < end ? (int)(positions[row] + 1 - args.window) : -(int)args.width;
            }
        }
        // The rows of the last sequence may go on behind the block's.
        const uint32_t ahead = args.width - args.window, next = first_row + end;
        const uint32_t behind =
            ahead == 0 || end < count ? 0 : rows_behind(in.rows, slot, next, min(next + ahead, shape.rows));
        walk<Space>(args, typename Space::Cache(in, slot, kv_head), c, stages, results,
            first_seen(args, positions[start]), positions[end - 1] + 1 + behind);
        if constexpr (Space::IS_ROTATED && DIM % WARP == 0) rotate_results(c, results);
        finish<DIM>(args, c, results, first, kv_head, first_row + start, first_row + end, part_stride(shape));
    }
}
