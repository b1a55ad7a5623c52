// Latent attention over paged f16 keys and values on matrix instructions: keys of 576 elements, values of 512, and up
// to COLUMNS query heads of a key-value head in a block, so that each is read once for them. Keys or values are the
// rows, query heads the columns (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1, with the projections absorbed).
//
// A block has a split of a row's positions, or all of them where rows are a prompt's, and takes STEP at a time: two
// warps score a tile of 16 keys, each with half of the elements; then each warp mixes the values of all for 64
// elements. Keys of the next step are on their way while values are mixed, and values while keys are scored.
// Where splits have blocks of their own, `attention_combine_splits` adds them: the same sums in the same order, however
// rows are evaluated.
#include "attention/softmax.cuh"
#include "ptx/mma_f16.cuh"

constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP;
constexpr uint32_t TILE = 16, STEP = 64, TILES = STEP / TILE;
constexpr uint32_t KEY_DIM = 576, VALUE_DIM = 512;
constexpr uint32_t GROUP_COLUMNS = 8, GROUPS = 2, COLUMNS = GROUPS * GROUP_COLUMNS;
// Elements that keep rows in shared memory in other banks.
constexpr uint32_t PAD = 8, KEY_STRIDE = KEY_DIM + PAD, VALUE_STRIDE = VALUE_DIM + PAD;
// Warps of a tile of keys, sixteens of elements that each multiplies, and those that a warp mixes.
constexpr uint32_t PARTS = WARPS / TILES, KEY_TILES = KEY_DIM / TILE / PARTS, MIXED = VALUE_DIM / TILE / WARPS;
static_assert(PARTS == 2 && STEP == 2 * PAGE_TOKENS, "a warp adds the half of another; a step has two pages");

struct Space {
    __half keys[STEP * KEY_STRIDE], values[STEP * VALUE_STRIDE];
    uint2 queries[KEY_DIM / TILE][GROUPS][WARP];  // fragments of B
    uint2 weights[TILES][GROUPS][WARP];           // the same for the keys of a step
    float4 halves[TILES][GROUPS][WARP];           // sums of the second half of elements
    float2 maxima[TILES][GROUPS][4], sums[TILES][GROUPS][4];
};
static_assert(sizeof(Space) == 166400, "as in lower/attention.rs");

// The positions from `first` on to their place in shared memory, of which those before `keys` exist. Pages that the
// row does not see may be gone.
template <uint32_t DIM>
__device__ __forceinline__ void start_copies(const HeadsArgs &in, const uint32_t *table, uint64_t run, uint32_t first,
    uint32_t seen, uint32_t keys, __half *to) {
    constexpr uint32_t CHUNKS = DIM / 8;
    const __half *cache = reinterpret_cast<const __half *>(in.cache) + run;
#pragma unroll
    for (uint32_t half = 0; half < STEP / PAGE_TOKENS; half++) {
        const uint32_t start = first + half * PAGE_TOKENS;
        const bool is_there = start < keys && start + PAGE_TOKENS > seen;
        const __half *from = cache + (is_there ? __ldcg(table + start / PAGE_TOKENS) : 0) * in.page_elements;
#pragma unroll
        for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * CHUNKS; i += THREADS) {
            const uint32_t row = i / CHUNKS;
            copy_or_clear(to + (half * PAGE_TOKENS + row) * (DIM + PAD) + i % CHUNKS * 8, from + i * 8,
                is_there && start + row < keys);
        }
    }
}

// Queries as fragments of B; columns without a head are 0.
__device__ __forceinline__ void load_queries(Space &space, const float *q, uint32_t heads, float scale) {
    for (uint32_t i = threadIdx.x; i < KEY_DIM / TILE * GROUPS * WARP; i += THREADS) {
        const uint32_t lane = i % WARP, group = i / WARP % GROUPS, tile = i / (WARP * GROUPS),
                       column = group * GROUP_COLUMNS + lane / 4;
        const float *from = q + (size_t)column * KEY_DIM + tile * TILE + lane % 4 * 2;
        uint32_t words[2] = {};
#pragma unroll
        for (uint32_t part = 0; part < 2; part++) {
            if (column >= heads) break;
            const float2 v = *reinterpret_cast<const float2 *>(from + part * 8);
            const __half2 pair = __floats2half2_rn(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
            words[part] = reinterpret_cast<const uint32_t &>(pair);
        }
        space.queries[tile][group][lane] = make_uint2(words[0], words[1]);
    }
}

// Products of the warp's keys and its half of their elements.
__device__ __forceinline__ void score(const Space &space, uint32_t tile, uint32_t part, float (&s)[GROUPS][4]) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half *row =
        space.keys + (tile * TILE + lane % TILE) * KEY_STRIDE + lane / TILE * 8 + part * KEY_TILES * TILE;
#pragma unroll
    for (uint32_t i = 0; i < KEY_TILES; i++) {
        uint32_t a[4];
        load_rows(a, row + i * TILE);
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const uint2 q = space.queries[part * KEY_TILES + i][g][lane];
            multiply_add(s[g], a, q.x, q.y);
        }
    }
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_latent(const __grid_constant__ AttentionArgs args, Shape shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    Space &space = *reinterpret_cast<Space *>(shared);
    const HeadsArgs &in = args.in;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tile = warp % TILES, part = warp / TILES;
    const uint32_t row = blockIdx.z, group = in.heads / in.kv_heads, chunks = (group + COLUMNS - 1) / COLUMNS,
                   kv_head = blockIdx.y / chunks, first_head = blockIdx.y % chunks * COLUMNS,
                   heads = min(COLUMNS, group - first_head);
    await_then_launch();
    const Row item = in.rows[row];
    const uint32_t keys = item.position + 1, seen = first_seen(args, item.position), stride = part_stride(shape);
    const uint32_t *table = in.tables + (size_t)item.slot * in.table_stride;
    const uint64_t keys_at = in.keys + (uint64_t)kv_head * PAGE_TOKENS * KEY_DIM,
                   values_at = in.values + (uint64_t)kv_head * PAGE_TOKENS * VALUE_DIM;
    const bool is_whole = gridDim.x == 1;
    const uint32_t begin = max(is_whole ? 0 : split_start(blockIdx.x), seen / STEP * STEP),
                   end = is_whole ? keys : min(split_start(blockIdx.x + 1), keys);
    if (begin >= end) return;
    start_copies<KEY_DIM>(in, table, keys_at, begin, seen, keys, space.keys);
    commit_copies();
    start_copies<VALUE_DIM>(in, table, values_at, begin, seen, keys, space.values);
    commit_copies();
    const size_t head = (size_t)row * in.heads + kv_head * group + first_head;
    load_queries(space, in.q + head * KEY_DIM, heads, args.scale);

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
        score(space, tile, part, s);
        if (part != 0) {
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++)
                space.halves[tile][g][lane] = make_float4(s[g][0], s[g][1], s[g][2], s[g][3]);
        }
        __syncthreads();
        if (next < end) start_copies<KEY_DIM>(in, table, keys_at, next, seen, keys, space.keys);
        commit_copies();
        if (part == 0) {
            // Those that the row does not see wrap around.
            const uint32_t key = first + tile * TILE + lane / 4 - seen;
            const bool hides[2] = {key >= keys - seen, key + 8 >= keys - seen};
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                const float4 half = space.halves[tile][g][lane];
                s[g][0] = hides[0] ? -INFINITY : __fadd_rn(s[g][0], half.x),
                s[g][1] = hides[0] ? -INFINITY : __fadd_rn(s[g][1], half.y),
                s[g][2] = hides[1] ? -INFINITY : __fadd_rn(s[g][2], half.z),
                s[g][3] = hides[1] ? -INFINITY : __fadd_rn(s[g][3], half.w);
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
        if (next < end) start_copies<VALUE_DIM>(in, table, values_at, next, seen, keys, space.values);
        commit_copies();
    }
#pragma unroll
    for (uint32_t i = 0; i < GROUPS * 2; i++) {
        const uint32_t g = i / 2, column = g * GROUP_COLUMNS + lane % 4 * 2 + i % 2;
        if (column >= heads) continue;
        const uint32_t element = warp * MIXED * TILE + lane / 4;
        if (is_whole) {
            float *to = args.out.x + (head + column) * VALUE_DIM + element;
            const float total = run[g][i % 2].sum;
#pragma unroll
            for (uint32_t e = 0; e < MIXED; e++)
                to[e * TILE] = __fdiv_rn(all[e][g][i % 2], total),
                       to[e * TILE + 8] = __fdiv_rn(all[e][g][i % 2 + 2], total);
            continue;
        }
        const size_t at = (head + column) * stride + blockIdx.x;
        float *to = args.mixed + at * VALUE_DIM + element;
#pragma unroll
        for (uint32_t e = 0; e < MIXED; e++) to[e * TILE] = all[e][g][i % 2], to[e * TILE + 8] = all[e][g][i % 2 + 2];
        if (warp == 0 && lane < 4) args.states[at] = make_float2(run[g][i % 2].max, run[g][i % 2].sum);
    }
}
