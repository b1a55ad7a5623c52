// What attention of single rows has its own way over a cache of 8 bits: tiles of multiples and scales in the stages,
// and heads that are rotated. Included before `decode_walk.cuh`, which calls it.
#pragma once
#include "attention/decode.cuh"
#include "attention/q8_tiles.cuh"

// Shared memory of a block: as much as for f16, of which the stages take about half.
template <uint32_t ELEMENTS>
struct Q8Buffers : Buffers<ELEMENTS> {
    using Base = Buffers<ELEMENTS>;
    using Cache = CachedQ8;
    static constexpr uint32_t DIM = ELEMENTS, TILE_BYTES = Q8Tile<DIM>::BYTES, STAGE = WARPS * TILE_BYTES;
    static constexpr bool IS_ROTATED = true;
    static constexpr uint32_t LANES_APART = 2, ROWS_APART = 1;
    // Where the multiples of a head end and its scales begin.
    uint8_t *own_key, *own_value;

    __device__ __forceinline__ explicit Q8Buffers(uint8_t *shared) : Base(shared) {
        own_key = reinterpret_cast<uint8_t *>(Base::own_key), own_value = reinterpret_cast<uint8_t *>(Base::own_value);
    }

    __device__ __forceinline__ uint8_t *tile(uint32_t stage, uint32_t index) const {
        return reinterpret_cast<uint8_t *>(Base::stages) + stage * STAGE + index * TILE_BYTES;
    }
    // A head of floats of each warp, behind the stages.
    __device__ __forceinline__ float *turned(uint32_t warp) const {
        constexpr uint32_t BEGIN = STAGES * STAGE;
        static_assert(BEGIN % 16 == 0 && BEGIN + 4 * WARPS * DIM <= 2 * STAGES * Base::STAGE, "f16 takes more");
        static_assert(q8_bytes(DIM) <= 2 * DIM, "an own key of f16 takes more");
        return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(Base::stages) + BEGIN) + warp * DIM;
    }

    // Rotates the results back, once all warps have written them.
    __device__ __forceinline__ void rotate_results(uint32_t heads) const {
        __syncthreads();
        const uint32_t warp = threadIdx.x / WARP;
        if (warp < heads) rotate_head<DIM>(Base::results() + warp * DIM, DIM);
    }
};

template <uint32_t DIM>
__device__ __forceinline__ void start_tile(
    const CachedQ8 &cached, const uint8_t *run, const Ahead &ahead, uint32_t limit, uint8_t *to) {
    if (ahead.key != NONE)
        start_tile_copy<DIM>(
            run + ahead.page * cached.page_elements, ahead.key % PAGE_TOKENS, (int)(limit - ahead.key), to);
    commit_copies();
}

// The multiples and scales of a rotated key or value, to shared memory and to its place in the cache.
template <uint32_t DIM, uint32_t COUNT>
__device__ __forceinline__ void put_blocks(
    const float (&x)[COUNT], uint8_t *own, const Q8Run &run, uint32_t slot, bool stores) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) {
        const uint32_t i = lane + j * WARP;
        int8_t multiple;
        const __half scale = encode_block(i < DIM ? x[j] : 0.0f, multiple);
        if (i < DIM) own[i] = (uint8_t)multiple;
        if (lane == 0) reinterpret_cast<__half *>(own + DIM)[j] = scale;
        if (!stores) continue;
        if (i < DIM) run.multiples[slot * DIM + i] = multiple;
        if (lane == 0) run.scales[j * PAGE_TOKENS + slot] = scale;
    }
}

// A key or value as it is in the cache.
template <uint32_t DIM>
__device__ __forceinline__ void load_stored(uint8_t *own, const Q8Run &run, uint32_t slot) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t *stored = reinterpret_cast<const uint32_t *>(run.multiples + slot * DIM);
#pragma unroll 1
    for (uint32_t i = lane; i < DIM / 4; i += WARP) reinterpret_cast<uint32_t *>(own)[i] = stored[i];
    if (lane < Q8Tile<DIM>::BLOCKS) reinterpret_cast<__half *>(own + DIM)[lane] = run.scales[lane * PAGE_TOKENS + slot];
}

// As for f16; a warp turns one head, key or value at a time as `qk_norm_rope_kv.cu` does, and rotates it.
template <uint32_t DIM, typename Wait>
__device__ __forceinline__ void turn_heads(const HeadsArgs &in, const Q8Buffers<DIM> &b, uint32_t row,
    const Place &place, uint32_t kv_head, const float *q, uint32_t heads, float scale, bool has_own, bool stores,
    const Wait &wait) {
    constexpr uint32_t COUNT = (DIM + WARP - 1) / WARP;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tasks = heads + (has_own ? 2 : 0);
    __half *queries = reinterpret_cast<__half *>(b.queries);
    for (uint32_t i = threadIdx.x; i < DIM / TILE * WARP; i += THREADS) {
        if (i % WARP / 4 >= heads) b.queries[i] = make_uint2(0, 0);
    }
    float *turned = b.turned(warp);
    const size_t page = place.page * in.page_elements + (size_t)kv_head * PAGE_TOKENS * q8_bytes(DIM);
    const size_t from = ((size_t)row * in.kv_heads + kv_head) * DIM;
    wait();
#pragma unroll 1
    for (uint32_t task = warp; task < tasks; task += WARPS) {
        const bool is_query = task < heads, is_key = task == heads;
        const Q8Run run(in.cache, page + (is_key ? in.keys : in.values), DIM);
        uint8_t *own = is_key ? b.own_key : b.own_value;
        if (!is_query && in.k == nullptr) {
            load_stored<DIM>(own, run, place.slot);
            continue;
        }
        const float *head = is_query ? q + (size_t)task * DIM : (is_key ? in.k : in.v) + from;
        const float *weight = is_query ? in.q_norm : is_key ? in.k_norm : in.v_norm;
        turn_head(in, row, head, weight, DIM, is_query || is_key ? in.half_dims : 0,
            [&](uint32_t i, float v) { turned[i] = v; });
        __syncwarp();
        float x[COUNT];
#pragma unroll
        for (uint32_t j = 0, i = lane; j < COUNT; j++, i += WARP) x[j] = i < DIM ? turned[i] : 0.0f;
        __syncwarp();
        rotate(x, rotated_elements(DIM));
        if (is_query) {
#pragma unroll
            for (uint32_t j = 0, i = lane; j < COUNT; j++, i += WARP) {
                if (i < DIM) queries[Q8Tile<DIM>::query_place(task, i)] = __float2half_rn(__fmul_rn(x[j], scale));
            }
            continue;
        }
        put_blocks<DIM>(x, own, run, place.slot, stores);
    }
}

// Puts the row's own key or value in its place of the warp's tile.
template <uint32_t DIM>
__device__ __forceinline__ void put_own(uint8_t *tile, const uint8_t *own, uint32_t row) {
    using Tile = Q8Tile<DIM>;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = lane; i < DIM / 4; i += WARP)
        reinterpret_cast<uint32_t *>(tile + row * Tile::STRIDE)[i] = reinterpret_cast<const uint32_t *>(own)[i];
    if (lane < Tile::BLOCKS) Tile::scales(tile)[lane * TILE + row] = reinterpret_cast<const __half *>(own + DIM)[lane];
    __syncwarp();
}

template <uint32_t DIM>
__device__ __forceinline__ void score(const Q8Buffers<DIM> &b, const uint8_t *tile, float (&s)[4]) {
    const uint2 *queries = b.queries + threadIdx.x % WARP;
    float sums[1][4] = {};
    score_tile<DIM>(tile, [&](uint32_t, uint32_t i) { return queries[i * WARP]; }, sums);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) s[i] = sums[0][i];
}

// Adds the weighted values of a step to the warp's elements, in the order of those of f16.
template <uint32_t DIM, uint32_t HALVES>
__device__ __forceinline__ void mix(
    const uint8_t *values, const uint2 *weights, const float2 (&factors)[2], float (&out)[MIXED<DIM>][4]) {
    using Tile = Q8Tile<DIM>;
    constexpr uint32_t TILES = HALVES * HALF_WARPS;
    const uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP * TILE;
    // Each load has 16 elements of two tiles.
    const uint32_t row = shared_address(values) + lane / TILE * Tile::BYTES + lane % TILE * Tile::STRIDE + first;
#pragma unroll
    for (uint32_t e = 0; e < MIXED<DIM>; e++) {
        if (first + e * WARPS * TILE >= DIM) break;
        uint32_t pairs[TILES / 2][4];
#pragma unroll
        for (uint32_t t = 0; t < TILES / 2; t++) load_columns(pairs[t], row + t * 2 * Tile::BYTES + e * WARPS * TILE);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            __half2 low, high;
            uint32_t a[4];
            load_scales<DIM>(values + t * Tile::BYTES, (first + e * WARPS * TILE) / Q8_BLOCK, low, high);
            unpack_values(a, pairs[t / 2][t % 2 * 2], pairs[t / 2][t % 2 * 2 + 1], low, high);
            const uint2 p = weights[t * WARP + lane];
            if (t % HALF_WARPS == 0) rescale(out[e], factors[t / HALF_WARPS]);
            multiply_add(out[e], a, p.x, p.y);
        }
    }
}
