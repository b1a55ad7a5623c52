// Groups of 32 weights, and their products with 8-bit activations.
#pragma once
#include "device.cuh"

// 32 weights as bytes, and the factors of their sums.
struct Group {
    int w[8];
    float scale[2];
    float min;
};

template <typename V>
__device__ __forceinline__ V read_at(const uint8_t *p, uint32_t index) {
    return reinterpret_cast<const V *>(p)[index];
}

__device__ __forceinline__ void split_nibbles(const uint4 &c, int (&w)[8]) {
    w[0] = c.x & 0x0f0f0f0f, w[1] = c.y & 0x0f0f0f0f, w[2] = c.z & 0x0f0f0f0f, w[3] = c.w & 0x0f0f0f0f;
    w[4] = c.x >> 4 & 0x0f0f0f0f, w[5] = c.y >> 4 & 0x0f0f0f0f, w[6] = c.z >> 4 & 0x0f0f0f0f, w[7] = c.w >> 4 & 0x0f0f0f0f;
}

// Group `index` of a slice of `groups`. What meets one row of activations alone is unpacked less far than what is REUSED.
template <int TYPE, bool REUSED>
__device__ __forceinline__ Group load_group(const uint8_t *slice, uint32_t groups, uint32_t index) {
    Group g;
    const uint4 c = read_at<uint4>(slice, index);
    const uint8_t *high = slice + code_bytes(TYPE) * groups, *scales = high + high_bytes(TYPE) * groups;
    const uint8_t *blocks = scales + scale_bytes(TYPE) * groups;
    if constexpr (TYPE == Q8_0) {
        const uint4 d = read_at<uint4>(slice, groups + index);
        g.w[0] = c.x, g.w[1] = c.y, g.w[2] = c.z, g.w[3] = c.w, g.w[4] = d.x, g.w[5] = d.y, g.w[6] = d.z, g.w[7] = d.w;
        g.scale[0] = __half2float(read_at<__half>(blocks, index));
        return g;
    }
    if constexpr (TYPE == Q4_K && !REUSED) {
        // Sixteen times the upper values, which stay where they are.
        g.w[0] = c.x & 0x0f0f0f0f, g.w[1] = c.y & 0x0f0f0f0f, g.w[2] = c.z & 0x0f0f0f0f, g.w[3] = c.w & 0x0f0f0f0f;
        g.w[4] = c.x & 0xf0f0f0f0, g.w[5] = c.y & 0xf0f0f0f0, g.w[6] = c.z & 0xf0f0f0f0, g.w[7] = c.w & 0xf0f0f0f0;
    } else {
        split_nibbles(c, g.w);
    }
    if constexpr (TYPE == Q5_K) {
        const uint32_t bits = read_at<uint32_t>(high, index);
#pragma unroll
        for (int i = 0; i < 8; i++) g.w[i] |= (bits >> i & 0x01010101u) << 4;
    }
    if constexpr (TYPE == Q6_K) {
        const uint2 bits = read_at<uint2>(high, index);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            g.w[i] |= (bits.x >> (2 * i) & 0x03030303u) << 4;
            g.w[4 + i] |= (bits.y >> (2 * i) & 0x03030303u) << 4;
        }
        const char2 pair = read_at<char2>(scales, index);
        const float d = __half2float(read_at<__half>(blocks, index / 8));
        g.scale[0] = d * (float)pair.x, g.scale[1] = d * (float)pair.y;
    } else {
        const uchar2 pair = read_at<uchar2>(scales, index);
        const float2 d = __half22float2(read_at<__half2>(blocks, index / 8));
        g.scale[0] = d.x * (float)pair.x, g.min = d.y * (float)pair.y;
    }
    return g;
}

// sum + the products of unsigned and of signed bytes.
__device__ __forceinline__ int add_unsigned(uint32_t w, int x, int sum) {
    int out;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
    return out;
}

// `sum` and the product with 32 activations, the lower 16 in `a`; exact within the group.
template <int TYPE, bool REUSED>
__device__ __forceinline__ float add_group(const Group &g, const int4 &a, const int4 &b, const Meta &meta, float sum) {
    int low = __dp4a(g.w[3], a.w, __dp4a(g.w[2], a.z, __dp4a(g.w[1], a.y, __dp4a(g.w[0], a.x, 0))));
    int high;
    if constexpr (TYPE == Q4_K && !REUSED) {
        high = add_unsigned(g.w[7], b.w, add_unsigned(g.w[6], b.z, add_unsigned(g.w[5], b.y, add_unsigned(g.w[4], b.x, 0)))) >> 4;
    } else {
        high = __dp4a(g.w[7], b.w, __dp4a(g.w[6], b.z, __dp4a(g.w[5], b.y, __dp4a(g.w[4], b.x, 0))));
    }
    if constexpr (TYPE == Q6_K) {
        low -= 32 * meta.sums.x, high -= 32 * meta.sums.y;
        const float part = __fmaf_rn(g.scale[0], (float)low, __fmul_rn(g.scale[1], (float)high));
        return __fmaf_rn(meta.scale, part, sum);
    }
    float part = __fmul_rn(g.scale[0], (float)(low + high));
    if constexpr (TYPE != Q8_0) part = __fmaf_rn(-g.min, (float)(meta.sums.x + meta.sums.y), part);
    return __fmaf_rn(meta.scale, part, sum);
}

// Eight floats from memory that they are aligned to, as f32.
template <int TYPE>
__device__ __forceinline__ void load_floats(const uint8_t *values, float (&w)[8]) {
    if constexpr (TYPE == F32) {
        const float4 a = read_at<float4>(values, 0), b = read_at<float4>(values, 1);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
        return;
    }
    const uint4 v = read_at<uint4>(values, 0);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == F16) {
            const float2 pair = __half22float2(reinterpret_cast<const __half2 &>(words[i]));
            w[2 * i] = pair.x, w[2 * i + 1] = pair.y;
        } else {
            w[2 * i] = __uint_as_float(words[i] << 16), w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

__device__ __forceinline__ float add_floats(const float (&w)[8], const float4 &a, const float4 &b, float sum) {
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) sum = __fmaf_rn(w[i], v[i], sum);
    return sum;
}
