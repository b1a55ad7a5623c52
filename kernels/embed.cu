// Rows of the token embedding, decoded to f32, and the copy of the rows whose logits are wanted. One block a row.
#include "common/group.cuh"

struct EmbedArgs {
    Matrix table;
    const Row *rows;
    float *out;
};

struct SelectArgs {
    const float *x;
    const uint32_t *outputs;
    float *out;
    uint32_t width, pad;
};

template <int TYPE>
__device__ __forceinline__ float value_of(const Group &g, int i) {
    const int code = (int8_t)(g.w[i / 4] >> (8 * (i % 4))), half = has_halves(TYPE) ? i / 16 : 0;
    float scale, min;
    if constexpr (has_factors(TYPE)) {
        scale = __fmul_rn(g.scale[0], (float)g.factor[half]), min = __fmul_rn(g.min[0], (float)g.min_factor[half]);
    } else {
        scale = g.scale[half], min = g.min[half];
    }
    const float value = __fmul_rn(scale, (float)(code - offset_of(TYPE)));
    return has_min(TYPE) ? __fsub_rn(value, min) : value;
}

// A group a thread.
template <int TYPE>
__device__ __forceinline__ void put_groups(const Matrix &m, const uint8_t *row, float4 *out) {
    const uint32_t all = m.cols / 32;
    for (uint32_t at = threadIdx.x; at < all; at += blockDim.x) {
        const uint32_t lane = at % SLICE_GROUPS, groups = min((uint32_t)SLICE_GROUPS, all - (at - lane));
        const Group g = load_group<TYPE, true>(row + at / SLICE_GROUPS * m.slice_bytes, groups, lane);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out[8 * at + i] = make_float4(value_of<TYPE>(g, 4 * i), value_of<TYPE>(g, 4 * i + 1), value_of<TYPE>(g, 4 * i + 2),
                                          value_of<TYPE>(g, 4 * i + 3));
        }
    }
}

template <int TYPE>
__device__ __forceinline__ void put_floats(const Matrix &m, const uint8_t *row, float *out) {
    for (uint32_t col = threadIdx.x; col < m.cols; col += blockDim.x) out[col] = load_float<TYPE>(row, col);
}

extern "C" __global__ void __launch_bounds__(256) embed(EmbedArgs args, Shape) {
    // In this order: what the first kernel of the step wrote, later kernels read before they wait.
    wait_for_producers();
    const uint32_t token = args.rows[blockIdx.x].token;
    const uint8_t *row = args.table.data + (size_t)token * args.table.row_bytes;
    float *out = args.out + (size_t)blockIdx.x * args.table.cols;
    by_type(args.table.dtype, [&](auto type) {
        constexpr int TYPE = decltype(type)::value;
        if constexpr (TYPE >= Q8_0) put_groups<TYPE>(args.table, row, reinterpret_cast<float4 *>(out));
        else put_floats<TYPE>(args.table, row, out);
    });
}

extern "C" __global__ void __launch_bounds__(256) select_rows(SelectArgs args, Shape) {
    wait_for_producers();
    const size_t from = (size_t)args.outputs[blockIdx.x] * args.width, to = (size_t)blockIdx.x * args.width;
    for (uint32_t col = threadIdx.x; col < args.width; col += blockDim.x) args.out[to + col] = args.x[from + col];
}
