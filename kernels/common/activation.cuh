// Writing activations: the float, and the 8-bit block of its warp.
#pragma once
#include "device.cuh"

// Below this the reciprocal of the scale would leave the range of f32.
constexpr float SMALLEST = 1e-36f;

// Called by a whole warp that holds 32 consecutive elements of a row; `col` is the lane's own, past `width` for none.
__device__ __forceinline__ void emit(const Activation &out, uint32_t row, uint32_t col, uint32_t width, float v) {
    const size_t at = (size_t)row * width + col;
    if (col < width) out.x[at] = v;
    if (out.q == nullptr) return;
    // Magnitudes compare as integers, in which NaN is the largest.
    const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffffu));
    const bool finite = __float_as_uint(largest) < 0x7f800000u;
    const float inverse = finite && largest >= SMALLEST ? __fdiv_rn(127.0f, largest) : 0.0f;
    const int q = finite ? __float2int_rn(__fmul_rn(v, inverse)) : 0;
    int sum = q;
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    const int upper = __shfl_sync(ALL_LANES, sum, 16);
    if (col >= width) return;
    out.q[at] = (int8_t)q;
    if (col % WARP != 0) return;
    const float scale = finite ? (largest >= SMALLEST ? __fdiv_rn(largest, 127.0f) : 0.0f) : __int_as_float(0x7fc00000);
    out.meta[at / WARP] = Meta{scale, make_short2((short)sum, (short)upper)};
}
