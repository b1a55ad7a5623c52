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

__device__ float half_at(const uint8_t *values, size_t index) {
    return __half2float(reinterpret_cast<const __half *>(values)[index]);
}

// Upper bits of value `i` of group `lane`; `high` is that part of its slice.
__device__ uint32_t upper_bits(uint32_t dtype, const uint32_t *high, uint32_t lane, uint32_t i) {
    const uint32_t word = i / 4, byte = i % 4;
    if (dtype == Q5_K) return high[lane] >> (8 * byte + word) & 1;
    return high[2 * lane + word / 4] >> (8 * byte + 2 * (word % 4)) & 3;
}

__device__ float quantized_value(const Matrix &m, const uint8_t *row, uint32_t col) {
    const uint32_t group = col / 32, i = col % 32, lane = group % SLICE_GROUPS;
    const uint32_t groups = min((uint32_t)SLICE_GROUPS, m.cols / 32 - (group - lane));
    const uint8_t *slice = row + group / SLICE_GROUPS * m.slice_bytes;
    const uint8_t *high = slice + code_bytes(m.dtype) * groups, *scales = high + high_bytes(m.dtype) * groups;
    const uint8_t *blocks = scales + scale_bytes(m.dtype) * groups;
    if (m.dtype == Q8_0) return half_at(blocks, lane) * (float)(int8_t)slice[(i / 16 * groups + lane) * 16 + i % 16];
    uint32_t code = slice[lane * 16 + i % 16] >> (i / 16 * 4) & 15;
    if (m.dtype != Q4_K) code |= upper_bits(m.dtype, reinterpret_cast<const uint32_t *>(high), lane, i) << 4;
    if (m.dtype == Q6_K) {
        const float scale = half_at(blocks, lane / 8) * (float)(int8_t)scales[2 * lane + i / 16];
        return scale * ((float)code - 32.0f);
    }
    const float scale = half_at(blocks, lane / 8 * 2) * (float)scales[2 * lane];
    const float min = half_at(blocks, lane / 8 * 2 + 1) * (float)scales[2 * lane + 1];
    return scale * (float)code - min;
}

__device__ float value_at(const Matrix &m, uint32_t row, uint32_t col) {
    const uint8_t *data = m.data + (size_t)row * m.row_bytes;
    switch (m.dtype) {
        case F32: return reinterpret_cast<const float *>(data)[col];
        case F16: return half_at(data, col);
        case BF16: return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(data)[col]);
        default: return quantized_value(m, data, col);
    }
}

extern "C" __global__ void __launch_bounds__(256) embed(EmbedArgs args, Shape) {
    // In this order: what the first kernel of the step wrote, later kernels read before they wait.
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
