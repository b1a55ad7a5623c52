// Tiles of 16 positions of one head of a cache of 8 bits, on their way from the pages to shared memory and from there
// to matrix instructions: rows of multiples, an odd number of 16 bytes apart, and behind them the scales, those of a
// block for all positions after those of the block before.
//
// A 16-bit word of the multiples has two neighbouring elements, of which the lower one becomes the element of an even
// place of a fragment and the upper one that of an odd place. Multiples are exact as f16. Products with keys are
// multiplied by the scale when those of a block are added, values as they are unpacked.
#pragma once
#include "attention/kv_pages.cuh"
#include "attention/kv_q8.cuh"
#include "ptx/mma_f16.cuh"

template <uint32_t DIM>
struct Q8Tile {
    static_assert(DIM % 16 == 0, "rows are copied by 16 bytes");
    static constexpr uint32_t ROWS = 16, BLOCKS = q8_blocks(DIM);
    static constexpr uint32_t STRIDE = DIM / 16 % 2 == 0 ? DIM + 16 : DIM, SCALES = ROWS * STRIDE,
                              BYTES = SCALES + 2 * ROWS * BLOCKS;

    __device__ __forceinline__ static __half *scales(uint8_t *tile) {
        return reinterpret_cast<__half *>(tile + SCALES);
    }
    __device__ __forceinline__ static const __half *scales(const uint8_t *tile) {
        return reinterpret_cast<const __half *>(tile + SCALES);
    }

    // Place of an element of a query among the halves of fragments of B.
    __device__ __forceinline__ static uint32_t query_place(uint32_t column, uint32_t i) {
        return ((i / 16 * WARP + column * 4 + i % 16 / 4) * 2 + i % 2) * 2 + i % 4 / 2;
    }
};

// The cache of a key-value head, as one sequence sees it.
struct CachedQ8 {
    const uint32_t *table;
    const uint8_t *keys, *values;  // in page 0
    uint64_t page_elements;

    __device__ __forceinline__ CachedQ8(const HeadsArgs &in, uint32_t slot, uint32_t kv_head) {
        const uint8_t *run =
            reinterpret_cast<const uint8_t *>(in.cache) + (size_t)kv_head * PAGE_TOKENS * q8_bytes(in.head_dim);
        table = in.tables + (size_t)slot * in.table_stride;
        keys = run + in.keys, values = run + in.values, page_elements = in.page_elements;
    }

    __device__ __forceinline__ uint32_t page_of(uint32_t position) const {
        return __ldcg(table + position / PAGE_TOKENS);
    }
};

// The first `bytes` of 16, and zeros behind them.
__device__ __forceinline__ void copy_first(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes)
        : "memory");
}

// Starts the copies of a tile, of slots `slot` to `slot + 15` of the head's run in a page, by a warp. Rows from `rows`
// on become 0.
template <uint32_t DIM>
__device__ __forceinline__ void start_tile_copy(const uint8_t *run, uint32_t slot, int rows, uint8_t *to) {
    using Tile = Q8Tile<DIM>;
    constexpr uint32_t CHUNKS = DIM / 16;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = lane; i < Tile::ROWS * CHUNKS; i += WARP) {
        const uint32_t row = i / CHUNKS;
        copy_or_clear(to + row * Tile::STRIDE + i % CHUNKS * 16, run + slot * DIM + i * 16, (int)row < rows);
    }
    const uint8_t *scales = run + PAGE_TOKENS * DIM + 2 * slot;
    if (lane < 2 * Tile::BLOCKS) {
        const int count = max(0, min(rows - (int)(lane % 2 * 8), 8));
        copy_first(to + Tile::SCALES + lane * 16, scales + lane / 2 * 2 * PAGE_TOKENS + lane % 2 * 16, 2 * count);
    }
}

__device__ __forceinline__ uint32_t as_word(__half2 v) { return reinterpret_cast<const uint32_t &>(v); }

// Bytes 0 and 2 of a word, or bytes 1 and 3, as f16: 1024 has them in its lowest bits.
__device__ __forceinline__ __half2 even_multiples(uint32_t v) {
    const uint32_t biased = (v & 0x00ff00ff) ^ 0x64806480;
    return __hsub2(reinterpret_cast<const __half2 &>(biased), __floats2half2_rn(1152.0f, 1152.0f));
}

__device__ __forceinline__ __half2 odd_multiples(uint32_t v) { return even_multiples(v >> 8); }

// A of 16 keys and 16 elements: `low` has the first eight keys as `load_rows` gives them, `high` the others.
__device__ __forceinline__ void unpack_keys(uint32_t (&a)[4], uint32_t low, uint32_t high) {
    a[0] = as_word(even_multiples(low)), a[1] = as_word(even_multiples(high));
    a[2] = as_word(odd_multiples(low)), a[3] = as_word(odd_multiples(high));
}

// A of 16 elements of 16 values: `low` has the first eight values as `load_columns` gives them, `high` the others.
__device__ __forceinline__ void unpack_values(
    uint32_t (&a)[4], uint32_t low, uint32_t high, __half2 low_scales, __half2 high_scales) {
    a[0] = as_word(__hmul2(even_multiples(low), low_scales)), a[1] = as_word(__hmul2(odd_multiples(low), low_scales));
    a[2] = as_word(__hmul2(even_multiples(high), high_scales)),
    a[3] = as_word(__hmul2(odd_multiples(high), high_scales));
}

// Scores of 16 keys with COUNT groups of columns, of whose queries `query(group, i)` gives the fragments of 16
// elements.
template <uint32_t DIM, uint32_t COUNT, typename Query>
__device__ __forceinline__ void score_tile(const uint8_t *tile, const Query &query, float (&s)[COUNT][4]) {
    using Tile = Q8Tile<DIM>;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t row = shared_address(tile) + lane % 16 * Tile::STRIDE + lane / 16 * 16;
    const __half *scales = Tile::scales(tile) + lane / 4;
#pragma unroll
    for (uint32_t block = 0; block < Tile::BLOCKS; block++) {
        uint32_t keys[4];
        float sums[COUNT][4] = {};
        load_rows(keys, row + block * Q8_BLOCK);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            if (block * Q8_BLOCK + half * 16 >= DIM) break;
            uint32_t a[4];
            unpack_keys(a, keys[2 * half], keys[2 * half + 1]);
#pragma unroll
            for (uint32_t n = 0; n < COUNT; n++) {
                const uint2 q = query(n, block * 2 + half);
                multiply_add(sums[n], a, q.x, q.y);
            }
        }
        const float low = __half2float(scales[block * 16]), high = __half2float(scales[block * 16 + 8]);
#pragma unroll
        for (uint32_t n = 0; n < COUNT; n++) {
            s[n][0] = __fmaf_rn(sums[n][0], low, s[n][0]), s[n][1] = __fmaf_rn(sums[n][1], low, s[n][1]);
            s[n][2] = __fmaf_rn(sums[n][2], high, s[n][2]), s[n][3] = __fmaf_rn(sums[n][3], high, s[n][3]);
        }
    }
}

// Scales of a block of a tile for the lane's values: places 2 (l % 4) and the next, and those 8 on.
template <uint32_t DIM>
__device__ __forceinline__ void load_scales(const uint8_t *tile, uint32_t block, __half2 &low, __half2 &high) {
    const __half *at = Q8Tile<DIM>::scales(tile) + block * 16 + threadIdx.x % 4 * 2;
    low = *reinterpret_cast<const __half2 *>(at), high = *reinterpret_cast<const __half2 *>(at + 8);
}
