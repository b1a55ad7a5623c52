// Products of up to two rows of any matrix with some rows of activations by a warp, in integers where weights are
// quantized (`dp4a`).
//
// Each lane adds the groups lane, lane + 32, ... of a weight row in that order, and the tree of `add_neighbours` adds
// the lanes: an output's order of summation depends on the number of columns alone. Products of quantized weights and
// 8-bit activations are exact integers within a group.
#pragma once
#include "gemm/segments.cuh"

constexpr int WARPS = 8;
constexpr int ROWS = 2;

template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_quantized(const Activation &in, uint32_t cols, const Matrix &m,
    const uint32_t (&weight)[ROWS], const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t groups = cols / 32, lane = threadIdx.x % WARP;
    const uint8_t *slices[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) slices[r] = m.data + (size_t)weight[r] * m.row_bytes;
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = lane; j < groups; j += SLICE_GROUPS) {
        Group g[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            g[r] = load_group<TYPE, true>(slices[r], min((uint32_t)SLICE_GROUPS, groups - (j - lane)), lane);
            slices[r] += m.slice_bytes;
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const size_t at = (size_t)row[n] * groups + j;
            const int4 *q = reinterpret_cast<const int4 *>(in.q) + 2 * at;
            const int4 a = q[0], b = q[1];
            const Meta meta = in.meta[at];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r][n] = add_group<TYPE, true>(g[r], a, b, meta, sum[r][n]);
        }
    }
}

// Rows of a multiple of 8 columns are read 8 values at a time, others one at a time.
template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_floats(const Activation &in, uint32_t cols, const Matrix &m,
    const uint32_t (&weight)[ROWS], const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint8_t *values[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) values[r] = m.data + (size_t)weight[r] * m.row_bytes;
    if (cols % 8 != 0) {
        for (uint32_t j = lane; j < cols; j += WARP) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float w = load_float<TYPE>(values[r], j);
#pragma unroll
                for (int n = 0; n < BATCH; n++) {
                    sum[r][n] = __fmaf_rn(w, in.x[(size_t)row[n] * cols + j], sum[r][n]);
                }
            }
        }
        return;
    }
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = 8 * lane; j < cols; j += 8 * WARP) {
        float w[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_floats<TYPE>(values[r] + (size_t)j * (TYPE == F32 ? 4 : 2), w[r]);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const float4 *x = reinterpret_cast<const float4 *>(in.x + (size_t)row[n] * cols + j);
            const float4 a = x[0], b = x[1];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r][n] = add_floats(w[r], a, b, sum[r][n]);
        }
    }
}

// The lane's sums of products with weight rows `weight` and rows `row` of activations.
template <int BATCH>
__device__ __forceinline__ void dot(const Activation &in, uint32_t cols, const Matrix &m,
    const uint32_t (&weight)[ROWS], const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    by_type(m.dtype, [&](auto type) {
        constexpr int TYPE = decltype(type)::value;
        if constexpr (TYPE >= Q8_0) dot_quantized<TYPE, BATCH>(in, cols, m, weight, row, sum);
        else dot_floats<TYPE, BATCH>(in, cols, m, weight, row, sum);
    });
}

// The sums of all lanes: lane n * ROWS + r keeps that of weight row r and row n of activations.
template <int BATCH>
__device__ __forceinline__ float add_all_lanes(const float (&sum)[ROWS][BATCH]) {
    float mine = 0.0f;
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float total = add_neighbours(sum[r][n]);
            if (threadIdx.x % WARP == n * ROWS + r) mine = total;
        }
    }
    return mine;
}
