// Attention of a row whose context is one split, as 8-bit blocks, by a block for each key-value head: the sums of
// `attention_decode_split.cu` in the same order.
//
// What counts is the way from the end of the block's wait to its own end, and on it the number of different
// instructions, which come from far. So all places are known before the wait, keys are in registers, and the warps that
// mix values finish their 8-bit blocks by themselves.
#pragma once
#include "attention/single_heads.cuh"

// Numbers in this range are divided without care for what is too large or too small.
constexpr uint32_t PLAIN_LEAST = (127 - 60) << 23, PLAIN_END = (127 + 60) << 23;

__device__ __forceinline__ bool is_plain(float v) { return magnitude(v) - PLAIN_LEAST < PLAIN_END - PLAIN_LEAST; }

__device__ __noinline__ float divide_carefully(float v, float by) { return __fdiv_rn(v, by); }

// Correctly rounded quotients, of which each four have one divisor: the steps of `__fdiv_rn`, all at once.
__device__ __forceinline__ void divide(float (&v)[2][4], const float (&by)[2]) {
    bool plain = true;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        plain &= is_plain(by[n]);
#pragma unroll
        for (int i = 0; i < 4; i++) plain &= is_plain(v[n][i]);
    }
    if (__builtin_expect(!plain, 0)) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i / 4][i % 4] = divide_carefully(v[i / 4][i % 4], by[i / 4]);
        return;
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float inverse;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(by[n]));
        inverse = __fmaf_rn(inverse, __fmaf_rn(-by[n], inverse, 1.0f), inverse);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float q = __fmul_rn(v[n][i], inverse);
            v[n][i] = __fmaf_rn(inverse, __fmaf_rn(-by[n], q, v[n][i]), q);
        }
    }
}

// Starts the lane's copies of a tile, of row `row` and those of other lanes behind, and ends their group. Row `own`
// comes another way; those behind it become 0.
template <uint32_t DIM>
__device__ __forceinline__ void start_others(uint32_t to, uint64_t from, int row, int own) {
    constexpr uint32_t ROWS = WARP / (DIM / 8);
#pragma unroll
    for (uint32_t i = 0; i < TILE / ROWS; i++) {
        const int now = row + i * ROWS;
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.s32 p, %2, %3;\n@p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %4;\n}" ::
                "r"(to + i * ROWS * 2 * Buffers<DIM>::STRIDE),
            "l"(from + i * ROWS * 2 * DIM), "r"(now), "r"(own), "r"(now < own ? 16 : 0)
            : "memory");
    }
    commit_copies();
}

// Makes the codes of 8-bit blocks, of which a lane has elements lane / 4, and 8, 16 and 24 on, of heads 2 (lane % 4)
// and the one after it; the warp's blocks stand at `at` in shared memory, 32 bytes a head. The same bits as
// `emit_blocks`.
__device__ __forceinline__ void put_codes(const float (&v)[2][4], uint32_t at, uint32_t lane, Meta (&meta)[2]) {
    uint32_t largest[2];
    int sums[2];
#pragma unroll
    for (uint32_t n = 0; n < 2; n++)
        largest[n] = max(max(magnitude(v[n][0]), magnitude(v[n][1])), max(magnitude(v[n][2]), magnitude(v[n][3])));
#pragma unroll
    for (int distance = 4; distance < WARP; distance *= 2) {
#pragma unroll
        for (uint32_t n = 0; n < 2; n++) largest[n] = max(largest[n], __shfl_xor_sync(ALL_LANES, largest[n], distance));
    }
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        const BlockScale block = block_scale(largest[n]);
        const uint32_t low = __byte_perm(code_of(block, v[n][0]), code_of(block, v[n][1]), 0x0040);
        const uint32_t high = __byte_perm(code_of(block, v[n][2]), code_of(block, v[n][3]), 0x0040);
        const uint32_t codes = __byte_perm(low, high, 0x5410) & block.bits;
        meta[n].scale = block.scale;
        // Both halves' sums stand in one word.
        sums[n] = __dp4a((int)codes, 0x00000101, 0) + (__dp4a((int)codes, 0x01010000, 0) << 16);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) store_byte(at + (lane % 4 * 2 + n) * 32 + lane / 4 + 8 * i, codes >> (8 * i));
    }
#pragma unroll
    for (int distance = 4; distance < WARP; distance *= 2) {
#pragma unroll
        for (uint32_t n = 0; n < 2; n++) sums[n] += __shfl_xor_sync(ALL_LANES, sums[n], distance);
    }
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        const short lower = (short)sums[n];
        meta[n].sums = make_short2(lower, (short)((sums[n] - lower) >> 16));
    }
}

// Puts the warp's maxima of both steps, rounded up, from its first key `key` of the lane on; what stands behind
// `position` has no score.
__device__ __forceinline__ void put_maxima(
    float (&s)[2][4], uint32_t key, uint32_t position, uint32_t lane, uint32_t maxima_to) {
    float2 most[2];
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
        if (key + step * STEP > position) s[step][0] = s[step][1] = -INFINITY;
        if (key + step * STEP + 8 > position) s[step][2] = s[step][3] = -INFINITY;
        most[step] = make_float2(fmaxf(s[step][0], s[step][2]), fmaxf(s[step][1], s[step][3]));
    }
#pragma unroll
    for (int distance = 4; distance < WARP; distance *= 2) {
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            most[step].x = fmaxf(most[step].x, __shfl_xor_sync(ALL_LANES, most[step].x, distance));
            most[step].y = fmaxf(most[step].y, __shfl_xor_sync(ALL_LANES, most[step].y, distance));
        }
    }
    if (lane < COLUMNS / 2) {
#pragma unroll
        for (uint32_t step = 0; step < 2; step++) {
            store_shared(
                maxima_to + step * (uint32_t)sizeof(Maxima), make_float2(ceilf(most[step].x), ceilf(most[step].y)));
        }
    }
}

// Bytes of a warp's maxima.
constexpr uint32_t TOPS_BYTES = sizeof(Maxima) / WARPS;

// Puts the weights of the warp's keys, their sums, and what sums so far are multiplied by before each half of a step.
__device__ __forceinline__ void put_weights(
    float (&s)[2][4], uint32_t warp, uint32_t tops_at, uint32_t weights_to, uint32_t own_sums, float2 (&factors)[4]) {
    float2 tops[4];
#pragma unroll
    for (uint32_t h = 0; h < 4; h++) {
        const uint32_t at = tops_at + h * HALF_WARPS * TOPS_BYTES;
        const float2 m[4] = {load_pair(at), load_pair(at + 32), load_pair(at + 64), load_pair(at + 96)};
        tops[h].x = fmaxf(fmaxf(m[0].x, m[1].x), fmaxf(m[2].x, m[3].x));
        tops[h].y = fmaxf(fmaxf(m[0].y, m[1].y), fmaxf(m[2].y, m[3].y));
    }
#pragma unroll
    for (uint32_t h = 1; h < 4; h++)
        tops[h].x = fmaxf(tops[h].x, tops[h - 1].x), tops[h].y = fmaxf(tops[h].y, tops[h - 1].y);
    // Weights stand by keys, 16 bytes each.
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
        const float2 top = warp < HALF_WARPS ? tops[2 * step] : tops[2 * step + 1];
        float (&w)[4] = s[step];
        w[0] = power_of(w[0] - top.x), w[1] = power_of(w[1] - top.y), w[2] = power_of(w[2] - top.x),
        w[3] = power_of(w[3] - top.y);
        store_shared(weights_to + step * STEP * 16, __floats2half2_rn(w[0], w[1]));
        store_shared(weights_to + step * STEP * 16 + 8 * 16, __floats2half2_rn(w[2], w[3]));
        store_shared(own_sums + step * THREADS * 8, make_float2(__fadd_rn(w[0], w[2]), __fadd_rn(w[1], w[3])));
    }
    // What sums so far are multiplied by.
    factors[0] = factor_between(make_float2(-INFINITY, -INFINITY), tops[0]);
#pragma unroll
    for (uint32_t h = 1; h < 4; h++) factors[h] = factor_between(tops[h - 1], tops[h]);
}

// Mixes 32 elements, whose values for the first half are there already, and sums the weights as `add_half` does. A lane
// gets four elements of two heads.
template <typename Load>
__device__ __forceinline__ void mix_whole(uint32_t (&values)[HALF_WARPS][2][4], const Load &load_values,
    const float2 (&factors)[4], uint32_t halves, uint32_t own_weights, uint32_t sums_from, float (&v)[2][4]) {
    float out[2][4] = {};
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (uint32_t h = 0; h < 4; h++) {
        // Halves without a key add nothing.
        if (h < halves) {
            uint32_t p[HALF_WARPS / 2][4];
#pragma unroll
            for (uint32_t t = 0; t < HALF_WARPS / 2; t++)
                load_columns(p[t], own_weights + (h * HALF_WARPS / 2 + t) * 2 * TILE * 16);
#pragma unroll
            for (uint32_t e = 0; e < 2; e++) rescale(out[e], factors[h]);
#pragma unroll
            for (uint32_t t = 0; t < HALF_WARPS; t++) {
#pragma unroll
                for (uint32_t e = 0; e < 2; e++)
                    multiply_add(out[e], values[t][e], p[t / 2][t % 2 * 2], p[t / 2][t % 2 * 2 + 1]);
            }
            if (h + 1 < halves) load_values(h + 1);
        }
        const uint32_t at = sums_from + h * HALF_WARPS * WARP * 8;
        float2 total = load_pair(at);
#pragma unroll
        for (uint32_t w = 1; w < HALF_WARPS; w++) {
            const float2 more = load_pair(at + w * WARP * 8);
            total.x = __fadd_rn(total.x, more.x), total.y = __fadd_rn(total.y, more.y);
        }
        sum.x = __fmaf_rn(sum.x, factors[h].x, total.x), sum.y = __fmaf_rn(sum.y, factors[h].y, total.y);
    }
    const float totals[2] = {column_sum(sum.x), column_sum(sum.y)};
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        // Merging adds to zero, which has no sign then.
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) v[n][i] = __fadd_rn(out[i / 2][i % 2 * 2 + n], 0.0f);
    }
    divide(v, totals);
}

// Writes 32 elements of each head, of which `block` is the first one's number; a place for codes is given.
template <uint32_t DIM, bool PLAIN>
__device__ __forceinline__ void put_row(
    const AttentionArgs &args, const float (&v)[2][4], size_t block, uint32_t heads, uint32_t lane, uint32_t codes) {
    // Whole blocks are written at once: parts of a sector would be read and merged.
    Meta meta[2];
    put_codes(v, codes, lane, meta);
    __syncwarp();
    if (lane / 4 < heads)
        *reinterpret_cast<uint2 *>(args.out.q + block + lane / 4 * DIM + lane % 4 * 8) = load_words(codes + lane * 8);
    Meta *to = args.out.meta + (block + lane * 2 * DIM) / 32;
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        if (lane < 4 && 2 * lane + n < heads) to[n * DIM / 32] = meta[n];
    }
    // As a rule products alone read them, and nobody their floats.
    if (PLAIN || args.floats == 0) return;
    const uint32_t head = lane % 4 * 2;
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
        float *floats = args.out.x + block + (head + n) * DIM + lane / 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (head + n < heads) floats[i * TILE / 2] = v[n][i];
    }
}

// So many blocks release the next kernel at once; fewer are quicker where it comes behind their copies.
constexpr uint32_t MANY_BLOCKS = 8;

// PLAIN heads have no norm, and nobody reads the floats of the result.
template <uint32_t DIM, bool PLAIN>
__device__ __forceinline__ void attend_single_split(const AttentionArgs &args) {
    constexpr uint32_t PAIRS = Pairs<DIM>::COUNT, CHUNKS = DIM / TILE, MIXERS = DIM / 32;
    constexpr uint32_t ROW = 2 * Buffers<DIM>::STRIDE, STAGE = STEP * ROW, OWN_TILE = TILE * ROW;
    // Behind the stages, as `Buffers` has them. Once scores are there, sums and then codes stand where the keys of the
    // second step were.
    constexpr uint32_t QUERIES = STAGES * STAGE, WEIGHTS = QUERIES + 8 * CHUNKS * WARP;
    constexpr uint32_t SUMS = 2 * STAGE, CODES = SUMS + 8 * 2 * WARPS * WARP;
    static_assert(CODES + MIXERS * 32 * COLUMNS <= QUERIES && CHUNKS * WARP <= THREADS, "a stage holds these");
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Maxima maxima[2];
    __shared__ HeadNorms<DIM, PLAIN> norms;
    static_assert(fits_twice<DIM>(sizeof(maxima) + sizeof(norms)), "two blocks share a processor");
    const HeadsArgs &in = args.in;
    uint32_t thread = threadIdx.x, base = shared_address(shared), row = blockIdx.z, kv_head = blockIdx.y;
    const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + row));
    if (gridDim.y * gridDim.z >= MANY_BLOCKS) launch_dependents();
    // Small whole numbers.
    uint32_t heads = (uint32_t)(__fdividef((float)in.heads, (float)in.kv_heads) + 0.5f);
    keep(thread), keep(base), keep(row), keep(kv_head), keep(heads);
    const uint32_t warp = thread / WARP, lane = thread % WARP, half = in.half_dims;
    uint32_t first[PAIRS], second[PAIRS];
#pragma unroll
    for (uint32_t j = 0, i = lane; j < PAIRS; j++, i += WARP) {
        first[j] = i >= half || in.pairs ? 2 * i : i, second[j] = i >= half || in.pairs ? 2 * i + 1 : i + half;
        keep(first[j]), keep(second[j]);
    }
    if (thread < CHUNKS * WARP && lane / 4 >= heads) store_shared(base + QUERIES + thread * 8, make_float2(0, 0));

    // Stages: keys of the first step, later values of the second; values of the first; keys of the second.
    uint32_t position = words.y;
    keep(position);
    const uint32_t halves = position / (STEP / 2) + 1, first_key = warp * TILE;
    const uint32_t *table = in.tables + (size_t)words.z * in.table_stride;
    const uint32_t near_page = first_key <= position ? __ldcg(table + first_key / PAGE_TOKENS) : 0;
    const uint32_t far_page = first_key + STEP <= position ? __ldcg(table + (first_key + STEP) / PAGE_TOKENS) : 0;
    const uint32_t own_page = __ldcg(table + position / PAGE_TOKENS);
    const uint64_t cache = global_address(in.cache) + (size_t)kv_head * (PAGE_TOKENS * DIM * 2);
    const auto place = [&](uint32_t page, uint32_t key) {
        return cache + 2 * (page * in.page_elements + key % PAGE_TOKENS * DIM);
    };
    const uint64_t near_from = place(near_page, first_key) + lane * 16,
                   far_from = place(far_page, first_key) + lane * 16;
    uint32_t tile = base + warp * OWN_TILE + lane / (DIM / 8) * ROW + lane % (DIM / 8) * 16,
             own_near = position - first_key;
    keep(tile), keep(own_near);
    const int lane_row = lane / (DIM / 8);
    if constexpr (!PLAIN) norms.start(in, warp, lane);
    start_others<DIM>(tile, near_from + 2 * in.keys, lane_row, own_near);
    if (first_key + STEP <= position)
        start_others<DIM>(tile + 2 * STAGE, far_from + 2 * in.keys, lane_row, own_near - STEP);
    else commit_copies();
    start_others<DIM>(tile + STAGE, near_from + 2 * in.values, lane_row, own_near);
    launch_dependents();

    // A warp has a head, the key or the value, or one of either.
    const uint32_t kv = (warp - heads) % WARPS;
    const bool has_head = warp < heads, has_kv = kv < 2, is_key = kv == 0;
    const float *head_at = in.q + ((size_t)row * in.heads + kv_head * heads + warp) * DIM;
    const float *kv_at = (is_key ? in.k : in.v) + ((size_t)row * in.kv_heads + kv_head) * DIM;
    uint64_t head_from = global_address(head_at), kv_from = global_address(kv_at),
             angles = ((size_t)row * half + lane) * 4;
    uint64_t kv_cache = place(own_page, position) + 2 * (is_key ? in.keys : in.values);
    uint32_t kv_to = base + position % STEP * ROW + (position < STEP ? (is_key ? 0 : STAGE) : (is_key ? 2 * STAGE : 0));
    uint32_t first_to[PAIRS], second_to[PAIRS];
#pragma unroll
    for (uint32_t j = 0; j < PAIRS; j++) {
        first_to[j] = base + QUERIES + 2 * query_place(warp, first[j]),
        second_to[j] = base + QUERIES + 2 * query_place(warp, second[j]);
        keep(first_to[j]), keep(second_to[j]);
    }
    keep(head_from), keep(kv_from), keep(kv_cache), keep(angles), keep(kv_to);
    uint32_t own_keys = base + warp * OWN_TILE + lane % TILE * ROW + lane / TILE * 16, key = first_key + lane / 4;
    uint32_t own_queries = base + QUERIES + lane * 8, own_sums = base + SUMS + thread * 8;
    uint32_t tops_at = shared_address(maxima) + lane % 4 * 8,
             maxima_to = shared_address(maxima) + warp * TOPS_BYTES + lane * 8;
    uint32_t weights_to = base + WEIGHTS + key * 16 + lane % 4 * 4;
    uint32_t corner = base + STAGE + (lane % 8 + lane / 16 * 8) * ROW + lane / 8 % 2 * 16 + warp * 64;
    keep(own_keys), keep(own_queries), keep(own_sums), keep(tops_at), keep(maxima_to), keep(weights_to), keep(corner),
        keep(key);

    // Keys go to registers, and the values of the second step where those of the first were.
    uint32_t near_keys[CHUNKS][4], far_keys[CHUNKS][4];
    const auto load_keys = [&](uint32_t (&keys)[CHUNKS][4], uint32_t from) {
#pragma unroll
        for (uint32_t i = 0; i < CHUNKS; i++) load_rows(keys[i], from + i * TILE * 2);
    };
    wait_copies<1>();
    load_keys(near_keys, own_keys);
    load_keys(far_keys, own_keys + 2 * STAGE);
    __syncthreads();
    if (warp < HALF_WARPS ? halves > 2 : halves > 3)
        start_others<DIM>(tile, far_from + 2 * in.values, lane_row, own_near - STEP);
    await_dependencies();

    Pairs<DIM> own, other;
    float cos[PAIRS], sin[PAIRS];
    if (has_head) own.load(head_from, first, second);
    if (has_kv) other.load(kv_from, first, second);
#pragma unroll
    for (uint32_t j = 0; j < PAIRS; j++) {
        if (lane + j * WARP >= half) break;
        cos[j] = load_global(global_address(in.cos) + angles + j * WARP * 4),
        sin[j] = load_global(global_address(in.sin) + angles + j * WARP * 4);
    }
    if (has_head)
        put_query<DIM, PLAIN>(own, args, norms, head_at, first, second, cos, sin, first_to, second_to, lane, half);
    if (has_kv)
        put_key_or_value<DIM, PLAIN>(
            other, in, norms, kv_at, is_key, first, second, cos, sin, kv_to, kv_cache, lane, half);
    wait_copies<0>();
    __syncthreads();

    float s[2][4] = {};
    uint2 q[CHUNKS];
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) q[i] = load_words(own_queries + i * WARP * 8);
    // The own key has come to its place.
    if (own_near < TILE) load_keys(near_keys, own_keys);
    if (own_near - STEP < TILE) load_keys(far_keys, own_keys + 2 * STAGE);
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) {
        multiply_add(s[0], near_keys[i], q[i].x, q[i].y);
        multiply_add(s[1], far_keys[i], q[i].x, q[i].y);
    }
    put_maxima(s, key, position, lane, maxima_to);
    // Values of half a step, on their way to registers early; those of the second step stand in the first stage.
    uint32_t values[HALF_WARPS][2][4];
    const auto load_values = [&](uint32_t h) {
#pragma unroll
        for (uint32_t t = 0; t < HALF_WARPS; t++) {
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                load_columns(values[t][e], corner + h % 2 * (STAGE / 2) - h / 2 * STAGE + t * OWN_TILE + e * TILE * 2);
        }
    };
    const bool mixes = warp < MIXERS;
    if (mixes) load_values(0);
    __syncthreads();

    float2 factors[4];
    put_weights(s, warp, tops_at, weights_to, own_sums, factors);
    __syncthreads();
    if (!mixes) return;

    float v[2][4];
    mix_whole(values, load_values, factors, halves, base + WEIGHTS + lane * 16, base + SUMS + lane * 8, v);
    put_row<DIM, PLAIN>(args, v, ((size_t)row * in.heads + kv_head * heads) * DIM + warp * 32, heads, lane,
        base + CODES + warp * 32 * COLUMNS);
}
