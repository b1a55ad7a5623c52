// Activations as 16-bit floats, in the form that matrix instructions take from shared memory, so that a tile of them is
// copied there as it is.
//
// F16_ROWS rows make a block, so tiles of fewer rows, whose number divides that, lie within one. A block has a chunk
// for each 64 columns, a chunk a line of 128 bytes for each of its rows, filled or not: what stands in lines of no row
// may be anything, NaN included. The eight parts of a line are swapped with the row's lowest bits, as 128-byte
// swizzling wants it. 128 columns, two chunks, have the order in which a thread takes 32 weights of one group out of
// their nibbles: group t of the four has elements 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16, and of its four
// neighbouring values the even ones come first. A row that ends with the first of two chunks has both, and something
// finite where the other groups would be.
#pragma once
#include "device.cuh"

constexpr uint32_t F16_ROWS = 512;
constexpr uint32_t F16_COLUMNS = 64, F16_LINE = 2 * F16_COLUMNS;
// Activations stand divided by this, so that none that occurs is too large; their products are multiplied by it.
constexpr float F16_SCALE = 16.0f;

// Chunks of a row of so many columns.
__host__ __device__ __forceinline__ uint32_t f16_chunks(uint32_t width) {
    return (width + 2 * F16_COLUMNS - 1) / (2 * F16_COLUMNS) * 2;
}

// The first byte of a row's line of a chunk, of rows with so many chunks.
__host__ __device__ __forceinline__ size_t f16_line(uint32_t row, uint32_t chunk, uint32_t chunks) {
    return (((size_t)(row / F16_ROWS) * chunks + chunk) * F16_ROWS + row % F16_ROWS) * F16_LINE;
}

// Four neighbouring columns of a row, by the first of them: the byte of the even ones; the odd ones' number differs
// by 16.
__host__ __device__ __forceinline__ size_t f16_quad_at(uint32_t row, uint32_t column, uint32_t width) {
    const uint32_t group = column / 32 % 4, step = column / 4 % 4 * 2 + column / 16 % 2;
    const uint32_t part = step % 4 * 2 ^ row % 8;
    return f16_line(row, column / 128 * 2 + step / 4, f16_chunks(width)) + part * 16 + group * 4;
}

__host__ __device__ __forceinline__ size_t f16_at(uint32_t row, uint32_t column, uint32_t width) {
    const size_t quad = f16_quad_at(row, column, width);
    return (column % 2 ? quad ^ 16 : quad) + column / 2 % 2 * 2;
}

// Whether activations are written in this form, and in no other.
__device__ __forceinline__ bool is_f16(const Activation &out) { return out.meta == nullptr && out.q != nullptr; }

// Finite whatever `v` is: of NaN the least.
__device__ __forceinline__ float fit_f16(float v) { return fminf(fmaxf(v * (1.0f / F16_SCALE), -65504.0f), 65504.0f); }

__device__ __forceinline__ uint32_t f16_pair(float first, float second) {
    const __half2 pair = __floats2half2_rn(fit_f16(first), fit_f16(second));
    return reinterpret_cast<const uint32_t &>(pair);
}

__device__ __forceinline__ void put_f16(const Activation &out, uint32_t row, uint32_t column, uint32_t width, float v) {
    *reinterpret_cast<__half *>(out.q + f16_at(row, column, width)) = __float2half_rn(fit_f16(v));
}

// Four neighbouring columns.
__device__ __forceinline__ void put_f16_quad(
    const Activation &out, uint32_t row, uint32_t column, uint32_t width, const float4 &v) {
    const size_t at = f16_quad_at(row, column, width);
    *reinterpret_cast<uint32_t *>(out.q + at) = f16_pair(v.x, v.z);
    *reinterpret_cast<uint32_t *>(out.q + (at ^ 16)) = f16_pair(v.y, v.w);
}
