// Attention of wide heads over paged f16 keys and values on matrix instructions: keys of 576 or of 512 elements, values
// of 512, and up to COLUMNS queries of a key-value head in a block, so that each is read once for them. Keys or values
// are the rows, queries the columns. Keys of 576 are those of latent attention (DeepSeek-AI, "DeepSeek-V2", 2024,
// section 2.1, with the projections absorbed).
//
// A block has a split of a row's positions, or all of them where rows are a prompt's, and takes STEP at a time: two
// warps score a tile of 16 keys, each with half of the elements; then each warp mixes the values of all for 64
// elements. Keys of the next step are on their way while values are mixed, and values while keys are scored. Blocks of
// prompts have as many rows as their columns take with all heads of the key-value head, those of one sequence at a
// time: positions that a row does not see add zeros, so it has the bits that it has alone. Where splits have blocks of
// their own, `attention_combine_splits` adds them: the same sums in the same order, however rows are evaluated.
#include "attention/softmax.cuh"
#include "ptx/mma_f16.cuh"

constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP;
constexpr uint32_t TILE = 16, STEP = 64, TILES = STEP / TILE;
// Most elements of a key, and those of a value.
constexpr uint32_t MOST_KEY_DIM = 576, VALUE_DIM = 512;
constexpr uint32_t GROUP_COLUMNS = 8, GROUPS = 2, COLUMNS = GROUPS * GROUP_COLUMNS;
// Elements that keep rows in shared memory in other banks.
constexpr uint32_t PAD = 8, VALUE_STRIDE = VALUE_DIM + PAD;
// Warps of a tile of keys, sixteens of elements that each multiplies at least, and those that a warp mixes.
constexpr uint32_t PARTS = WARPS / TILES, KEY_TILES = 512 / TILE / PARTS, MIXED = VALUE_DIM / TILE / WARPS;
static_assert(PARTS == 2 && STEP == 2 * PAGE_TOKENS, "a warp adds the half of another; a step has two pages");

struct Space {
    __half keys[STEP * (MOST_KEY_DIM + PAD)], values[STEP * VALUE_STRIDE];
    uint2 queries[MOST_KEY_DIM / TILE][GROUPS][WARP];  // fragments of B
    uint2 weights[TILES][GROUPS][WARP];                // the same for the keys of a step
    float4 halves[TILES][GROUPS][WARP];                // sums of the second half of elements
    float2 maxima[TILES][GROUPS][4], sums[TILES][GROUPS][4];
};
static_assert(sizeof(Space) == 166400, "as in lower/attention.rs");

// Results stand where keys were, a row for each column.
constexpr uint32_t RESULT_STRIDE = VALUE_DIM + 4, QUADS = VALUE_DIM / 4;
static_assert(4 * COLUMNS * RESULT_STRIDE <= sizeof(Space::keys) && QUADS % WARP == 0, "they fit, and warps have one");

// The keys or values of the positions from `first` on to their place in shared memory, of which those before `keys`
// exist. Pages that no row sees may be gone.
__device__ __forceinline__ void start_copies(const HeadsArgs &in, const uint32_t *table, uint64_t run, uint32_t dim,
    uint32_t first, uint32_t seen, uint32_t keys, __half *to) {
    const __half *cache = reinterpret_cast<const __half *>(in.cache) + run;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll 1
    for (uint32_t half = 0; half < STEP / PAGE_TOKENS; half++) {
        const uint32_t start = first + half * PAGE_TOKENS;
        const bool is_there = start < keys && start + PAGE_TOKENS > seen;
        const __half *from = cache + (is_there ? __ldcg(table + start / PAGE_TOKENS) : 0) * in.page_elements;
#pragma unroll
        for (uint32_t row = warp; row < PAGE_TOKENS; row += WARPS) {
            // A lane has two chunks of 512 elements, and of those behind them one or none.
            const bool is_wanted = is_there && start + row < keys;
            __half *own = to + (half * PAGE_TOKENS + row) * (dim + PAD) + lane * 8;
            const __half *own_from = from + row * dim + lane * 8;
            copy_or_clear(own, own_from, is_wanted);
            copy_or_clear(own + WARP * 8, own_from + WARP * 8, is_wanted);
            if (2 * WARP * 8 + lane * 8 < dim) copy_or_clear(own + 2 * WARP * 8, own_from + 2 * WARP * 8, is_wanted);
        }
    }
}

// The queries of a block: rows from `row` on with all their heads, or some heads of a row.
struct Queries {
    uint32_t row, rows, first_head, heads;

    __device__ __forceinline__ uint32_t row_of(uint32_t column) const { return column / heads; }
    __device__ __forceinline__ size_t head_of(uint32_t column, uint32_t all) const {
        return (size_t)(row + row_of(column)) * all + first_head + column % heads;
    }
};

// Queries as fragments of B; columns without one are 0.
__device__ __forceinline__ void load_queries(Space &space, const HeadsArgs &in, const Queries &queries, float scale) {
    for (uint32_t i = threadIdx.x; i < in.head_dim / TILE * GROUPS * WARP; i += THREADS) {
        const uint32_t lane = i % WARP, group = i / WARP % GROUPS, tile = i / (WARP * GROUPS),
                       column = group * GROUP_COLUMNS + lane / 4;
        const float *from = in.q + queries.head_of(column, in.heads) * in.head_dim + tile * TILE + lane % 4 * 2;
        uint32_t words[2] = {};
#pragma unroll
        for (uint32_t part = 0; part < 2; part++) {
            if (queries.row_of(column) >= queries.rows) break;
            const float2 v = *reinterpret_cast<const float2 *>(from + part * 8);
            const __half2 pair = __floats2half2_rn(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
            words[part] = reinterpret_cast<const uint32_t &>(pair);
        }
        space.queries[tile][group][lane] = make_uint2(words[0], words[1]);
    }
}

// Products of the warp's keys and its half of their elements.
__device__ __forceinline__ void score(
    const Space &space, uint32_t dim, uint32_t tile, uint32_t part, float (&s)[GROUPS][4]) {
    const uint32_t lane = threadIdx.x % WARP, own = dim / TILE / PARTS;
    const __half *row = space.keys + (tile * TILE + lane % TILE) * (dim + PAD) + lane / TILE * 8 + part * own * TILE;
    const uint2(*queries)[GROUPS][WARP] = space.queries + part * own;
    const auto add = [&](uint32_t i) {
        uint32_t a[4];
        load_rows(a, row + i * TILE);
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const uint2 q = queries[i][g][lane];
            multiply_add(s[g], a, q.x, q.y);
        }
    };
#pragma unroll
    for (uint32_t i = 0; i < KEY_TILES; i++) add(i);
#pragma unroll 1
    for (uint32_t i = KEY_TILES; i < own; i++) add(i);
}

// Adds the weighted values of a step to the warp's elements, which are rescaled before.
__device__ __forceinline__ void mix(
    const Space &space, const float2 (&factors)[GROUPS], float (&out)[MIXED][GROUPS][4]) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half *row =
        space.values + (lane % 8 + lane / 16 * 8) * VALUE_STRIDE + lane / 8 % 2 * 8 + threadIdx.x / WARP * MIXED * TILE;
    uint2 p[TILES][GROUPS];
#pragma unroll
    for (uint32_t i = 0; i < TILES * GROUPS; i++)
        p[i / GROUPS][i % GROUPS] = space.weights[i / GROUPS][i % GROUPS][lane];
#pragma unroll
    for (uint32_t e = 0; e < MIXED; e++) {
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) rescale(out[e][g], factors[g]);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            uint32_t a[4];
            load_columns(a, row + t * TILE * VALUE_STRIDE + e * TILE);
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) multiply_add(out[e][g], a, p[t][g].x, p[t][g].y);
        }
    }
}

// What a lane knows of its columns: the first position that each sees, and how many; none where it has no query.
struct Seen {
    uint32_t first[GROUPS][2], count[GROUPS][2];

    // Those of the queries' rows from `start` to `stop`.
    __device__ __forceinline__ Seen(const AttentionArgs &args, const Queries &queries, uint32_t start, uint32_t stop) {
#pragma unroll
        for (uint32_t i = 0; i < GROUPS * 2; i++) {
            const uint32_t row = queries.row_of(i / 2 * GROUP_COLUMNS + threadIdx.x % 4 * 2 + i % 2);
            const bool is_there = row >= start && row < stop;
            const uint32_t position = is_there ? args.in.rows[queries.row + row].position : 0;
            first[i / 2][i % 2] = first_seen(args, position);
            count[i / 2][i % 2] = is_there ? position + 1 - first[i / 2][i % 2] : 0;
        }
    }

    // The score of `key` by column `i` of a group.
    __device__ __forceinline__ float score(uint32_t group, uint32_t i, uint32_t key, float v) const {
        // Those before the first one wrap around.
        return key - first[group][i] < count[group][i] ? v : -INFINITY;
    }
};

// Divides by the sums and writes the columns of the queries' rows from `start` to `stop`, by the whole block.
__device__ __forceinline__ void put_results(const AttentionArgs &args, Space &space, const Queries &queries,
    uint32_t start, uint32_t stop, const float (&all)[MIXED][GROUPS][4], const State (&run)[GROUPS][2]) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float *results = reinterpret_cast<float *>(space.keys);
#pragma unroll
    for (uint32_t i = 0; i < GROUPS * 2; i++) {
        const uint32_t g = i / 2, column = g * GROUP_COLUMNS + lane % 4 * 2 + i % 2;
        float *to = results + column * RESULT_STRIDE + warp * MIXED * TILE + lane / 4;
        const float total = run[g][i % 2].sum;
#pragma unroll
        for (uint32_t e = 0; e < MIXED; e++)
            to[e * TILE] = __fdiv_rn(all[e][g][i % 2], total),
                   to[e * TILE + 8] = __fdiv_rn(all[e][g][i % 2 + 2], total);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < COLUMNS * QUADS; i += THREADS) {
        const uint32_t column = i / QUADS, row = queries.row_of(column);
        if (row < start || row >= stop) continue;
        const float4 v = *reinterpret_cast<const float4 *>(results + column * RESULT_STRIDE + i % QUADS * 4);
        const uint32_t head = queries.first_head + column % queries.heads;
        emit_quad<true>(args.out, queries.row + row, head * QUADS + i % QUADS, args.in.heads * VALUE_DIM, true, v);
    }
    __syncthreads();
}

// The queries' rows from `start` to `stop`, which are of one sequence.
__device__ __forceinline__ void attend(const AttentionArgs &args, const Shape &shape, Space &space,
    const Queries &queries, uint32_t kv_head, uint32_t start, uint32_t stop) {
    const HeadsArgs &in = args.in;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tile = warp % TILES, part = warp / TILES,
                   dim = in.head_dim, stride = part_stride(shape);
    const Row item = in.rows[queries.row + start];
    const uint32_t keys = in.rows[queries.row + stop - 1].position + 1, seen = first_seen(args, item.position);
    const uint32_t *table = in.tables + (size_t)item.slot * in.table_stride;
    const uint64_t keys_at = in.keys + (uint64_t)kv_head * PAGE_TOKENS * dim,
                   values_at = in.values + (uint64_t)kv_head * PAGE_TOKENS * VALUE_DIM;
    const bool is_whole = gridDim.x == 1;
    const uint32_t begin = max(is_whole ? 0 : split_start(blockIdx.x), seen / STEP * STEP),
                   end = is_whole ? keys : min(split_start(blockIdx.x + 1), keys);
    if (begin >= end) return;
    start_copies(in, table, keys_at, dim, begin, seen, keys, space.keys);
    commit_copies();
    start_copies(in, table, values_at, VALUE_DIM, begin, seen, keys, space.values);
    commit_copies();
    // Those of all sequences.
    if (start == 0) load_queries(space, in, queries, args.scale);
    const Seen sees(args, queries, start, stop);

    float out[MIXED][GROUPS][4] = {}, all[MIXED][GROUPS][4] = {};
    float2 top[GROUPS], sum[GROUPS];
    State run[GROUPS][2];
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        top[g] = make_float2(-INFINITY, -INFINITY), sum[g] = make_float2(0.0f, 0.0f);
        run[g][0] = run[g][1] = State{-INFINITY, 0.0f};
    }
    for (uint32_t first = begin; first < end; first += STEP) {
        const uint32_t next = first + STEP;
        float s[GROUPS][4] = {};
        wait_copies<1>();
        __syncthreads();
        score(space, dim, tile, part, s);
        if (part != 0) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++)
                space.halves[tile][g][lane] = make_float4(s[g][0], s[g][1], s[g][2], s[g][3]);
        }
        __syncthreads();
        if (next < end) start_copies(in, table, keys_at, dim, next, seen, keys, space.keys);
        commit_copies();
        if (part == 0) {
            const uint32_t key = first + tile * TILE + lane / 4;
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const float4 half = space.halves[tile][g][lane];
                s[g][0] = sees.score(g, 0, key, __fadd_rn(s[g][0], half.x)),
                s[g][1] = sees.score(g, 1, key, __fadd_rn(s[g][1], half.y)),
                s[g][2] = sees.score(g, 0, key + 8, __fadd_rn(s[g][2], half.z)),
                s[g][3] = sees.score(g, 1, key + 8, __fadd_rn(s[g][3], half.w));
                const float x = column_max(fmaxf(s[g][0], s[g][2])), y = column_max(fmaxf(s[g][1], s[g][3]));
                if (lane < 4) space.maxima[tile][g][lane] = make_float2(ceilf(x), ceilf(y));
            }
        }
        __syncthreads();
        float2 factors[GROUPS];
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const float2 before = top[g];
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++) {
                const float2 other = space.maxima[t][g][lane % 4];
                top[g].x = fmaxf(top[g].x, other.x), top[g].y = fmaxf(top[g].y, other.y);
            }
            factors[g] = factor_between(before, top[g]);
            if (part != 0) continue;
            const float2 base = base_of(top[g]);
            s[g][0] = power_of(s[g][0] - base.x), s[g][1] = power_of(s[g][1] - base.y);
            s[g][2] = power_of(s[g][2] - base.x), s[g][3] = power_of(s[g][3] - base.y);
            sum[g].x = __fmaf_rn(sum[g].x, factors[g].x, __fadd_rn(s[g][0], s[g][2]));
            sum[g].y = __fmaf_rn(sum[g].y, factors[g].y, __fadd_rn(s[g][1], s[g][3]));
            space.weights[tile][g][lane] = make_uint2(transpose(s[g][0], s[g][1]), transpose(s[g][2], s[g][3]));
        }
        const bool ends_split = next >= end || split_of(next) != split_of(first);
        if (ends_split && part == 0) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const float2 own = make_float2(column_sum(sum[g].x), column_sum(sum[g].y));
                if (lane < 4) space.sums[tile][g][lane] = own;
            }
        }
        wait_copies<1>();
        __syncthreads();
        mix(space, factors, out);
        if (ends_split) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                float2 total = space.sums[0][g][lane % 4];
#pragma unroll
                for (uint32_t t = 1; t < TILES; t++) {
                    const float2 other = space.sums[t][g][lane % 4];
                    total.x = __fadd_rn(total.x, other.x), total.y = __fadd_rn(total.y, other.y);
                }
                const float2 x = merge_state(run[g][0], top[g].x, total.x),
                             y = merge_state(run[g][1], top[g].y, total.y);
#pragma unroll
                for (uint32_t i = 0; i < MIXED * 4; i++) {
                    float &own = out[i / 4][g][i % 4], &merged = all[i / 4][g][i % 4];
                    merged = merge_value(merged, own, i % 2 == 0 ? x : y), own = 0.0f;
                }
                top[g] = make_float2(-INFINITY, -INFINITY), sum[g] = make_float2(0.0f, 0.0f);
            }
        }
        __syncthreads();
        if (next < end) start_copies(in, table, values_at, VALUE_DIM, next, seen, keys, space.values);
        commit_copies();
    }
    if (is_whole) return put_results(args, space, queries, start, stop, all, run);
#pragma unroll
    for (uint32_t i = 0; i < GROUPS * 2; i++) {
        const uint32_t g = i / 2, column = g * GROUP_COLUMNS + lane % 4 * 2 + i % 2;
        if (column >= queries.heads) continue;
        const size_t at = queries.head_of(column, in.heads) * stride + blockIdx.x;
        float *to = args.mixed + at * VALUE_DIM + warp * MIXED * TILE + lane / 4;
#pragma unroll
        for (uint32_t e = 0; e < MIXED; e++) to[e * TILE] = all[e][g][i % 2], to[e * TILE + 8] = all[e][g][i % 2 + 2];
        if (warp == 0 && lane < 4) args.states[at] = make_float2(run[g][i % 2].max, run[g][i % 2].sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_wide(const __grid_constant__ AttentionArgs args, Shape shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    Space &space = *reinterpret_cast<Space *>(shared);
    const HeadsArgs &in = args.in;
    const uint32_t group = in.heads / in.kv_heads, chunks = (group + COLUMNS - 1) / COLUMNS,
                   kv_head = blockIdx.y / chunks, in_group = blockIdx.y % chunks * COLUMNS;
    // The last rows of a prompt see the most keys: they go first.
    const uint32_t most_rows = shape.splits == 0 && group < COLUMNS ? COLUMNS / group : 1,
                   row = (shape.splits == 0 ? gridDim.z - 1 - blockIdx.z : blockIdx.z) * most_rows;
    const Queries queries{
        row, min(most_rows, shape.rows - row), kv_head * group + in_group, min(COLUMNS, group - in_group)};
    await_then_launch();
    // Rows of a sequence stand side by side.
    for (uint32_t start = 0, stop; start < queries.rows; start = stop) {
        const uint32_t slot = in.rows[row + start].slot;
        for (stop = start + 1; stop < queries.rows && in.rows[row + stop].slot == slot;) stop++;
        attend(args, shape, space, queries, kv_head, start, stop);
    }
}
