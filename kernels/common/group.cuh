// Groups of 32 weights, and their products with 8-bit activations.
#pragma once
#include "device.cuh"

// 32 weights as bytes: value i is scale[i / 16] * (byte i of w - offset_of(TYPE)) - min[i / 16]. Types without has_halves have only the first
// scale and the first minimum, types without has_min no minimum; nothing reads the others. Types with has_factors have one scale and one
// minimum, to be multiplied with whole numbers for each half.
struct Group {
    int w[8];
    float scale[2], min[2];
    int factor[2], min_factor[2];
};

// A type as a constant: what `by_type` gives.
template <uint32_t DTYPE>
struct Known {
    static constexpr uint32_t value = DTYPE;
};

template <typename F>
__device__ __forceinline__ void by_quantized_type(uint32_t dtype, const F &f) {
    switch (dtype) {
        case Q8_0: return f(Known<Q8_0>());
        case Q4_K: return f(Known<Q4_K>());
        case Q5_K: return f(Known<Q5_K>());
        case Q6_K: return f(Known<Q6_K>());
        case Q4_0: return f(Known<Q4_0>());
        case Q4_1: return f(Known<Q4_1>());
        case Q5_0: return f(Known<Q5_0>());
        case Q5_1: return f(Known<Q5_1>());
        case Q2_K: return f(Known<Q2_K>());
        case Q3_K: return f(Known<Q3_K>());
        case IQ4_NL: return f(Known<IQ4_NL>());
        case IQ4_XS: return f(Known<IQ4_XS>());
        case MXFP4: return f(Known<MXFP4>());
        case NVFP4: return f(Known<NVFP4>());
        default: return f(Known<BYTES>());
    }
}

// Calls `f`, a function of an `auto type`, with the type as `decltype(type)::value`.
template <typename F>
__device__ __forceinline__ void by_type(uint32_t dtype, const F &f) {
    switch (dtype) {
        case F32: return f(Known<F32>());
        case F16: return f(Known<F16>());
        case BF16: return f(Known<BF16>());
        default: return by_quantized_type(dtype, f);
    }
}

template <typename V>
__device__ __forceinline__ V read_at(const uint8_t *p, uint32_t index) {
    return reinterpret_cast<const V *>(p)[index];
}

__device__ __forceinline__ void split_nibbles(const uint4 &c, int (&w)[8]) {
    w[0] = c.x & 0x0f0f0f0f, w[1] = c.y & 0x0f0f0f0f, w[2] = c.z & 0x0f0f0f0f, w[3] = c.w & 0x0f0f0f0f;
    w[4] = c.x >> 4 & 0x0f0f0f0f, w[5] = c.y >> 4 & 0x0f0f0f0f, w[6] = c.z >> 4 & 0x0f0f0f0f, w[7] = c.w >> 4 & 0x0f0f0f0f;
}

// Adds two bits to each byte, at bit `to`.
__device__ __forceinline__ void add_pairs(const uint2 &bits, int to, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] |= (bits.x >> (2 * i) & 0x03030303u) << to;
        w[4 + i] |= (bits.y >> (2 * i) & 0x03030303u) << to;
    }
}

// The bytes of `low` and `high` that the selector's nibbles name; their top bits are zero.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
}

// The levels of the four numbers in the low nibbles of `numbers`: out of each half of the table, then out of these two.
__device__ __forceinline__ uint32_t look_up(const Levels &table, uint32_t numbers, uint32_t halves) {
    const uint32_t low = pick_bytes(table.words[0], table.words[1], numbers), high = pick_bytes(table.words[2], table.words[3], numbers);
    return pick_bytes(low, high, halves);
}

__device__ __forceinline__ void look_up_levels(const Levels &table, const uint4 &c, int (&w)[8]) {
    const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t numbers = words[i] & 0x77777777u, halves = (words[i] >> 1 & 0x44444444u) | 0x32103210u;
        w[i] = look_up(table, numbers, halves), w[4 + i] = look_up(table, numbers >> 16, halves >> 16);
    }
}

// Whether the upper values of nibbles stay where they are, so that they count sixteen times.
template <int TYPE, bool REUSED>
__device__ constexpr bool keeps_upper() {
    return !REUSED && code_bytes(TYPE) == 16 && high_bytes(TYPE) == 0 && !has_levels(TYPE);
}

template <int TYPE, bool REUSED>
__device__ __forceinline__ void load_codes(const uint8_t *slice, const uint8_t *high, uint32_t groups, uint32_t index, int (&w)[8]) {
    if constexpr (code_bytes(TYPE) == 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = 0;
        add_pairs(read_at<uint2>(slice, index), 0, w);
    } else {
        const uint4 c = read_at<uint4>(slice, index);
        if constexpr (code_bytes(TYPE) == 32) {
            const uint4 d = read_at<uint4>(slice, groups + index);
            w[0] = c.x, w[1] = c.y, w[2] = c.z, w[3] = c.w, w[4] = d.x, w[5] = d.y, w[6] = d.z, w[7] = d.w;
        } else if constexpr (has_levels(TYPE)) {
            look_up_levels(levels_of(TYPE), c, w);
        } else if constexpr (keeps_upper<TYPE, REUSED>()) {
            w[0] = c.x & 0x0f0f0f0f, w[1] = c.y & 0x0f0f0f0f, w[2] = c.z & 0x0f0f0f0f, w[3] = c.w & 0x0f0f0f0f;
            w[4] = c.x & 0xf0f0f0f0, w[5] = c.y & 0xf0f0f0f0, w[6] = c.z & 0xf0f0f0f0, w[7] = c.w & 0xf0f0f0f0;
        } else {
            split_nibbles(c, w);
        }
    }
    if constexpr (high_bytes(TYPE) == 4) {
        const uint32_t bits = read_at<uint32_t>(high, index);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] |= (bits >> i & 0x01010101u) << (code_bytes(TYPE) / 4);
    }
    if constexpr (high_bytes(TYPE) == 8) add_pairs(read_at<uint2>(high, index), 4, w);
}

// Half of the power of two with this exponent biased by 127; the two smallest are subnormal.
__device__ __forceinline__ float half_power(uint32_t exponent) {
    return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// Half of an E4M3 number, by way of the half-precision number of the same bits.
__device__ __forceinline__ float half_e4m3(uint32_t bits) { return 128.0f * __half2float(__ushort_as_half((unsigned short)(bits << 7))); }

template <int TYPE>
__device__ __forceinline__ void load_scales(const uint8_t *scales, const uint8_t *blocks, uint32_t index, Group &g) {
    if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0 || TYPE == IQ4_NL) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index));
    } else if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
        const float2 d = __half22float2(read_at<__half2>(blocks, index));
        g.scale[0] = d.x, g.min[0] = -d.y;
    } else if constexpr (TYPE == BYTES) {
        const float2 pair = read_at<float2>(blocks, index);
        g.scale[0] = pair.x, g.scale[1] = pair.y;
    } else if constexpr (TYPE == MXFP4) {
        g.scale[0] = half_power(scales[index]);
    } else if constexpr (TYPE == NVFP4) {
        const uchar2 pair = read_at<uchar2>(scales, index);
        g.scale[0] = half_e4m3(pair.x), g.scale[1] = half_e4m3(pair.y);
    } else if constexpr (TYPE == IQ4_XS) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index / 8)) * (float)read_at<int8_t>(scales, index);
    } else if constexpr (TYPE == Q3_K) {
        const char2 pair = read_at<char2>(scales, index);
        g.scale[0] = __half2float(read_at<__half>(blocks, index / 8));
        g.factor[0] = pair.x, g.factor[1] = pair.y;
    } else if constexpr (TYPE == Q2_K) {
        const uint32_t pair = read_at<uint16_t>(scales, index);
        const float2 d = __half22float2(read_at<__half2>(blocks, index / 8));
        g.scale[0] = d.x, g.min[0] = d.y;
        g.factor[0] = pair & 15, g.factor[1] = pair >> 8 & 15;
        g.min_factor[0] = pair >> 4 & 15, g.min_factor[1] = pair >> 12;
    } else if constexpr (TYPE == Q6_K) {
        const char2 pair = read_at<char2>(scales, index);
        const float d = __half2float(read_at<__half>(blocks, index / 8));
        g.scale[0] = d * (float)pair.x, g.scale[1] = d * (float)pair.y;
    } else {
        const uchar2 pair = read_at<uchar2>(scales, index);
        const float2 d = __half22float2(read_at<__half2>(blocks, index / 8));
        g.scale[0] = d.x * (float)pair.x, g.min[0] = d.y * (float)pair.y;
    }
}

// Group `index` of a slice of `groups`. What meets one row of activations alone is unpacked less far than what is REUSED: only REUSED bytes are
// those that `Group` promises.
template <int TYPE, bool REUSED>
__device__ __forceinline__ Group load_group(const uint8_t *slice, uint32_t groups, uint32_t index) {
    const uint8_t *high = slice + code_bytes(TYPE) * groups, *scales = high + high_bytes(TYPE) * groups;
    Group g;
    load_codes<TYPE, REUSED>(slice, high, groups, index, g.w);
    load_scales<TYPE>(scales, scales + scale_bytes(TYPE) * groups, index, g);
    return g;
}

// sum + the products of unsigned and of signed bytes.
__device__ __forceinline__ int add_unsigned(uint32_t w, int x, int sum) {
    int out;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
    return out;
}

// `sum` and the product with 32 activations whose products with the group's bytes are `low` for the lower 16 and `high` for the upper ones.
// Types without has_halves use their sum alone.
template <int TYPE>
__device__ __forceinline__ float add_products(const Group &g, int low, int high, const Meta &meta, float sum) {
    constexpr int OFFSET = offset_of(TYPE);
    const int both = meta.sums.x + meta.sums.y;
    float part;
    if constexpr (has_halves(TYPE)) low -= OFFSET * meta.sums.x, high -= OFFSET * meta.sums.y;
    if constexpr (has_factors(TYPE)) {
        part = __fmul_rn(g.scale[0], (float)(g.factor[0] * low + g.factor[1] * high));
        if constexpr (has_min(TYPE)) {
            part = __fmaf_rn(-g.min[0], (float)(g.min_factor[0] * meta.sums.x + g.min_factor[1] * meta.sums.y), part);
        }
    } else if constexpr (has_halves(TYPE)) {
        part = __fmaf_rn(g.scale[0], (float)low, __fmul_rn(g.scale[1], (float)high));
    } else {
        part = __fmul_rn(g.scale[0], (float)(low + high - OFFSET * both));
        if constexpr (has_min(TYPE)) part = __fmaf_rn(-g.min[0], (float)both, part);
    }
    return __fmaf_rn(meta.scale, part, sum);
}

// `sum` and the product with 32 activations, the lower 16 in `a`; exact within the group.
template <int TYPE, bool REUSED>
__device__ __forceinline__ float add_group(const Group &g, const int4 &a, const int4 &b, const Meta &meta, float sum) {
    const int low = __dp4a(g.w[3], a.w, __dp4a(g.w[2], a.z, __dp4a(g.w[1], a.y, __dp4a(g.w[0], a.x, 0))));
    int high;
    if constexpr (keeps_upper<TYPE, REUSED>()) {
        high = add_unsigned(g.w[7], b.w, add_unsigned(g.w[6], b.z, add_unsigned(g.w[5], b.y, add_unsigned(g.w[4], b.x, 0)))) >> 4;
    } else {
        high = __dp4a(g.w[7], b.w, __dp4a(g.w[6], b.z, __dp4a(g.w[5], b.y, __dp4a(g.w[4], b.x, 0))));
    }
    return add_products<TYPE>(g, low, high, meta, sum);
}

template <int TYPE>
__device__ __forceinline__ float load_float(const uint8_t *values, uint32_t at) {
    if constexpr (TYPE == F32) return reinterpret_cast<const float *>(values)[at];
    if constexpr (TYPE == F16) return __half2float(reinterpret_cast<const __half *>(values)[at]);
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(values)[at]);
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
