// A row of a table of embeddings, decoded to f32 by EMBED_THREADS threads.
#pragma once
#include "quant/unpack.cuh"

constexpr uint32_t EMBED_THREADS = 4 * WARP;

template <int TYPE>
__device__ __forceinline__ float value_of(const Group &g, int i) {
    const int code = (int8_t)(g.w[i / 4] >> (8 * (i % 4))), half = has_halves(TYPE) ? i / 16 : 0;
    float scale, min;
    if constexpr (has_factors(TYPE)) {
        scale = __fmul_rn(g.scale[0], (float)(int8_t)(g.factors >> (8 * half)));
        min = __fmul_rn(g.min[0], (float)(int8_t)(g.min_factors >> (8 * half)));
    } else {
        scale = g.scale[half], min = g.min[half];
    }
    const float value = __fmul_rn(scale, (float)(code - offset_of(TYPE)));
    return has_min(TYPE) ? __fsub_rn(value, min) : value;
}

// A group a thread.
template <int TYPE>
__device__ __forceinline__ void put_groups(const Matrix &m, const uint8_t *row, uint32_t first, float4 *out) {
    const uint32_t all = m.cols / 32;
    for (uint32_t at = first; at < all; at += EMBED_THREADS) {
        const uint32_t lane = at % SLICE_GROUPS, groups = min((uint32_t)SLICE_GROUPS, all - (at - lane));
        const Group g = load_group<TYPE, true>(row + at / SLICE_GROUPS * m.slice_bytes, groups, lane);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[8 * at + i] = make_float4(value_of<TYPE>(g, 4 * i), value_of<TYPE>(g, 4 * i + 1),
                value_of<TYPE>(g, 4 * i + 2), value_of<TYPE>(g, 4 * i + 3));
        }
    }
}

template <int TYPE>
__device__ __forceinline__ void put_floats(const Matrix &m, const uint8_t *row, uint32_t first, float *out) {
    for (uint32_t col = first; col < m.cols; col += EMBED_THREADS) out[col] = load_float<TYPE>(row, col);
}

// Row `index` of the table; a thread has the number `first` among those that decode it.
__device__ __forceinline__ void put_table_row(const Matrix &m, uint32_t index, float *out, uint32_t first) {
    const uint8_t *from = m.data + (size_t)index * m.row_bytes;
    by_type(m.dtype, [&](auto type) {
        constexpr int TYPE = decltype(type)::value;
        if constexpr (TYPE >= Q8_0) put_groups<TYPE>(m, from, first, reinterpret_cast<float4 *>(out));
        else put_floats<TYPE>(m, from, first, out);
    });
}
