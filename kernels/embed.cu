// Rows of the token embedding, decoded to f32, and the copy of the rows whose logits are wanted. One block a row.
#include "common/device.cuh"

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

__device__ float half_at(const uint8_t *plane, size_t index) {
    return __half2float(reinterpret_cast<const __half *>(plane)[index]);
}

// Upper bits of value `i` of a group.
__device__ uint32_t upper_bits(const Matrix &m, size_t group, uint32_t i) {
    const uint32_t *high = reinterpret_cast<const uint32_t *>(m.high);
    const uint32_t word = i / 4, byte = i % 4;
    if (m.dtype == Q5_K) return high[group] >> (8 * byte + word) & 1;
    return high[2 * group + word / 4] >> (8 * byte + 2 * (word % 4)) & 3;
}

__device__ float quantized_value(const Matrix &m, size_t group, uint32_t i) {
    if (m.dtype == Q8_0) return half_at(m.blocks, group) * (float)(int8_t)m.codes[group * 32 + i];
    uint32_t code = m.codes[group * 16 + i % 16] >> (i / 16 * 4) & 15;
    if (m.dtype != Q4_K) code |= upper_bits(m, group, i) << 4;
    if (m.dtype == Q6_K) {
        const float scale = half_at(m.blocks, group / 8) * (float)(int8_t)m.scales[2 * group + i / 16];
        return scale * ((float)code - 32.0f);
    }
    const float scale = half_at(m.blocks, group / 8 * 2) * (float)m.scales[2 * group];
    const float min = half_at(m.blocks, group / 8 * 2 + 1) * (float)m.scales[2 * group + 1];
    return scale * (float)code - min;
}

__device__ float value_at(const Matrix &m, uint32_t row, uint32_t col) {
    const size_t at = (size_t)row * m.cols + col;
    switch (m.dtype) {
        case F32: return reinterpret_cast<const float *>(m.codes)[at];
        case F16: return half_at(m.codes, at);
        case BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(m.codes)[at]);
        default: return quantized_value(m, at / 32, at % 32);
    }
}

extern "C" __global__ void __launch_bounds__(256) embed(EmbedArgs args, Shape) {
    wait_for_producers();
    const uint32_t token = args.rows[blockIdx.x].token;
    for (uint32_t col = threadIdx.x; col < args.table.cols; col += blockDim.x) {
        args.out[(size_t)blockIdx.x * args.table.cols + col] = value_at(args.table, token, col);
    }
}

extern "C" __global__ void __launch_bounds__(256) select_rows(SelectArgs args, Shape) {
    wait_for_producers();
    const size_t from = (size_t)args.outputs[blockIdx.x] * args.width, to = (size_t)blockIdx.x * args.width;
    for (uint32_t col = threadIdx.x; col < args.width; col += blockDim.x) args.out[to + col] = args.x[from + col];
}
