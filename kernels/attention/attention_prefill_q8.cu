// Attention of prompts over keys and values of 8 bits: stages hold tiles of multiples and scales, and heads are
// rotated.
#include "attention/prefill.cuh"
#include "attention/q8_tiles.cuh"

template <int ELEMENTS>
struct Q8Stages {
    static constexpr int DIM = ELEMENTS;
    using Cache = CachedQ8;
    using Element = uint8_t;
    static constexpr uint32_t STAGE = TILES * Q8Tile<DIM>::BYTES;
    static constexpr bool IS_ROTATED = true;
    static constexpr uint32_t LANES_APART = 2, ROWS_APART = 1;
    static_assert(STAGES * STAGE <= STAGES_BYTES<DIM>, "f16 takes more");
};

// Each tile has one warp, or the first of two, to copy it.
template <int DIM>
__device__ __forceinline__ void start_step(const CachedQ8 &cached, const uint8_t *run, uint32_t page, uint32_t first,
    uint32_t keys, bool is_seen, uint8_t *to) {
    constexpr uint32_t SHARE = THREADS<DIM> / WARP / TILES;
    const uint32_t warp = threadIdx.x / WARP, tile = warp / SHARE;
    if (warp % SHARE != 0) return;
    start_tile_copy<DIM>(run + page * cached.page_elements, tile * TILE % PAGE_TOKENS,
        is_seen ? (int)(keys - first) - (int)(tile * TILE) : 0, to + tile * Q8Tile<DIM>::BYTES);
}

// The columns' queries, rotated in the warp's results.
template <int DIM>
__device__ __forceinline__ void load_rotated(const HeadsArgs &in, Columns<DIM> &c, float *rotated, uint32_t first,
    uint32_t kv_head, uint32_t rows, float scale) {
    constexpr uint32_t COUNT = (DIM + WARP - 1) / WARP;
    const uint32_t lane = threadIdx.x % WARP, group = in.heads / in.kv_heads;
#pragma unroll 1
    for (uint32_t j = 0; j < GROUPS<DIM> * GROUP_COLUMNS; j++) {
        const uint32_t row = (first + j) / group;
        const float *q = in.q + ((size_t)row * in.heads + kv_head * group + (first + j) % group) * DIM;
        float x[COUNT];
#pragma unroll
        for (uint32_t e = 0, i = lane; e < COUNT; e++, i += WARP) x[e] = row < rows && i < DIM ? q[i] : 0.0f;
        rotate(x, rotated_elements(DIM));
#pragma unroll
        for (uint32_t e = 0, i = lane; e < COUNT; e++, i += WARP) {
            if (i < DIM) rotated[j * (DIM + 4) + i] = __fmul_rn(x[e], scale);
        }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < GROUPS<DIM>; n++) {
        const float *q = rotated + (n * GROUP_COLUMNS + lane / 4) * (DIM + 4) + lane % 4 * 4;
#pragma unroll
        for (uint32_t i = 0; i < DIM / TILE; i++) {
#pragma unroll
            for (uint32_t part = 0; part < 2; part++)
                c.queries[n][i][part] = as_word(__floats2half2_rn(q[i * TILE + part], q[i * TILE + part + 2]));
        }
    }
    __syncwarp();
}

// Products of a step of keys with the queries.
template <int DIM>
__device__ __forceinline__ void score_keys(
    const Columns<DIM> &c, const uint8_t *keys, float (&s)[GROUPS<DIM>][TILES][4]) {
    const auto query = [&](uint32_t n, uint32_t i) { return make_uint2(c.queries[n][i][0], c.queries[n][i][1]); };
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        float sums[GROUPS<DIM>][4] = {};
        score_tile<DIM>(keys + t * Q8Tile<DIM>::BYTES, query, sums);
#pragma unroll
        for (uint32_t i = 0; i < GROUPS<DIM> * 4; i++) s[i / 4][t][i % 4] = sums[i / 4][i % 4];
    }
}

template <int DIM>
__device__ __forceinline__ void mix_step(Columns<DIM> &c, const uint8_t *values) {
    using Tile = Q8Tile<DIM>;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++) {
        const uint8_t *tile = values + t * Tile::BYTES;
        const uint32_t row = shared_address(tile) + lane % TILE * Tile::STRIDE + lane / TILE * 16;
#pragma unroll
        for (uint32_t block = 0; block < Tile::BLOCKS; block++) {
            uint32_t words[4];
            __half2 low, high;
            load_columns(words, row + block * Q8_BLOCK);
            load_scales<DIM>(tile, block, low, high);
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t i = block * 2 + half;
                if (i * TILE >= DIM) break;
                uint32_t a[4];
                unpack_values(a, words[2 * half], words[2 * half + 1], low, high);
#pragma unroll
                for (int n = 0; n < GROUPS<DIM>; n++)
                    multiply_add(c.out[n][i], a, c.weights[n][t][0], c.weights[n][t][1]);
            }
        }
    }
}

// Rotates the warp's results back.
template <int DIM>
__device__ __forceinline__ void rotate_results(const Columns<DIM> &, float *results) {
    __syncwarp();
#pragma unroll 1
    for (uint32_t j = 0; j < GROUPS<DIM> * GROUP_COLUMNS; j++) rotate_head<DIM>(results + j * (DIM + 4), DIM);
}

#define ATTENTION_PREFILL_Q8(family, file, name, DIM)                             \
    extern "C" __global__ void __launch_bounds__(THREADS<DIM>, DIM > 128 ? 1 : 2) \
        name(const __grid_constant__ AttentionArgs args, Shape shape) {           \
        attend<Q8Stages<DIM>>(args, shape);                                       \
    }
#include "kernels.def"
