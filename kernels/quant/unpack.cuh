// Groups of 32 weights, and their products with 8-bit activations.
#pragma once
#include "device.cuh"

// 3 * 2^22: a float of this size has an integer for its lowest bits, so integers that start here are floats already.
constexpr int INTEGER_BITS = 0x4b400000;
constexpr float INTEGER_BASE = 12582912.0f;

// 32 weights as bytes: value i is scale[i / 16] * (byte i of w - offset_of(TYPE)) - min[i / 16]. Types without
// has_halves have only the first scale and the first minimum, types without has_min no minimum; nothing reads the
// others. Types with has_factors have one scale and one minimum, to be multiplied with whole numbers for each half, the
// two lowest bytes of a word. Only levels that are not REUSED have `v`: theirs are the magnitudes of one sign in `w`
// and those of the other in `v`.
struct Group {
    int w[8], v[8];
    float scale[2], min[2];
    int factors, min_factors;
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
        case TQ2_0: return f(Known<TQ2_0>());
        case IQ4_NL: return f(Known<IQ4_NL>());
        case IQ4_XS: return f(Known<IQ4_XS>());
        case MXFP4: return f(Known<MXFP4>());
        case NVFP4: return f(Known<NVFP4>());
        default: return f(Known<BYTES>());
    }
}

// The types that have GEMM kernels of their own.
template <typename F>
__device__ __forceinline__ void by_gemm_type(uint32_t dtype, const F &f) {
    switch (dtype) {
        case Q8_0: return f(Known<Q8_0>());
        case Q4_K: return f(Known<Q4_K>());
        case Q5_K: return f(Known<Q5_K>());
        default: return f(Known<Q6_K>());
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
    w[4] = c.x >> 4 & 0x0f0f0f0f, w[5] = c.y >> 4 & 0x0f0f0f0f, w[6] = c.z >> 4 & 0x0f0f0f0f,
    w[7] = c.w >> 4 & 0x0f0f0f0f;
}

// Adds two bits to each byte, at bit `to`.
__device__ __forceinline__ void add_pairs(const uint2 &bits, int to, int (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] |= (bits.x >> (2 * i) & 0x03030303u) << to;
        w[4 + i] |= (bits.y >> (2 * i) & 0x03030303u) << to;
    }
}

// The bytes of `low` and `high` that the selector's nibbles name. Where a nibble's top bit is set, that byte's own top
// bit fills its place.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
}

// The levels of the four numbers in the low nibbles of `numbers`: out of each half of the table, then out of these two.
__device__ __forceinline__ uint32_t look_up(const Levels &table, uint32_t numbers, uint32_t halves) {
    const uint32_t low = pick_bytes(table.words[0], table.words[1], numbers),
                   high = pick_bytes(table.words[2], table.words[3], numbers);
    return pick_bytes(low, high, halves);
}

// The first and the third word of the magnitudes of levels. A compiler that knew them would load them again for each
// look-up.
struct LevelWords {
    uint32_t first, third;
};

// Puts those of a type into shared memory, by the block's first thread.
template <uint32_t TYPE>
__device__ __forceinline__ void make_level_words(LevelWords &words) {
    if constexpr (has_levels(TYPE)) {
        if (threadIdx.x == 0) words = LevelWords{magnitudes_of(TYPE).words[0], magnitudes_of(TYPE).words[2]};
    }
}

// Magnitudes have no top bit, so numbers of the table's other half give zeros: `w` has the levels of the first half,
// `v` those of the second.
template <int TYPE>
__device__ __forceinline__ void look_up_magnitudes(
    const LevelWords &level_words, const uint4 &c, int (&w)[8], int (&v)[8]) {
    constexpr Levels TABLE = magnitudes_of(TYPE);
    const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t numbers = words[i], others = numbers ^ 0x88888888u;
        w[i] = pick_bytes(level_words.first, TABLE.words[1], numbers),
        w[4 + i] = pick_bytes(level_words.first, TABLE.words[1], numbers >> 16);
        v[i] = pick_bytes(level_words.third, TABLE.words[3], others),
        v[4 + i] = pick_bytes(level_words.third, TABLE.words[3], others >> 16);
    }
}

__device__ __forceinline__ void look_up_levels(const Levels &table, const uint4 &c, int (&w)[8]) {
    const uint32_t words[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t numbers = words[i] & 0x77777777u, halves = (words[i] >> 1 & 0x44444444u) | 0x32103210u;
        w[i] = look_up(table, numbers, halves), w[4 + i] = look_up(table, numbers >> 16, halves >> 16);
    }
}

// How many bits a word of codes stands above its place where it is not REUSED.
template <int TYPE>
__device__ constexpr int shift_of(int word) {
    if (has_two_bits(TYPE)) return word % 2 * 2;
    if (TYPE == Q3_K) return word % 4 == 3 ? 5 : word == 1 || word == 4 || word == 6 ? 3 : 0;
    return code_bytes(TYPE) == 16 && high_bytes(TYPE) == 0 && !has_levels(TYPE) && word > 3 ? 4 : 0;
}

// Codes of less than four bits, each word `shift_of` above its place.
template <int TYPE>
__device__ __forceinline__ void load_small_codes(
    const uint8_t *slice, const uint8_t *high, uint32_t index, int (&w)[8]) {
    const uint2 c = read_at<uint2>(slice, index);
    if constexpr (has_two_bits(TYPE)) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const uint32_t word = (i < 4 ? c.x : c.y) >> (i % 4 * 2);
            w[i] = word & 0x03030303u, w[i + 1] = word & 0x0c0c0c0cu;
        }
    } else {
        const uint32_t d = read_at<uint32_t>(high, index);
        w[0] = c.x & 0x07070707u, w[1] = c.x & 0x38383838u, w[2] = c.y & 0x07070707u,
        w[3] = (c.x & 0xc0c0c0c0u) | (c.y >> 1 & 0x20202020u);
        w[4] = c.y & 0x38383838u, w[5] = d & 0x07070707u, w[6] = d & 0x38383838u,
        w[7] = (d & 0xc0c0c0c0u) | (c.y >> 2 & 0x20202020u);
    }
}

template <int TYPE, bool REUSED>
__device__ __forceinline__ void load_codes(const uint8_t *slice, const uint8_t *high, uint32_t groups, uint32_t index,
    const LevelWords &level_words, Group &g) {
    int (&w)[8] = g.w;
    if constexpr (code_bytes(TYPE) == 8) {
        load_small_codes<TYPE>(slice, high, index, w);
        if constexpr (REUSED) {
#pragma unroll
            for (int i = 0; i < 8; i++) w[i] = (uint32_t)w[i] >> shift_of<TYPE>(i);
        }
        return;
    } else {
        const uint4 c = read_at<uint4>(slice, index);
        if constexpr (code_bytes(TYPE) == 32) {
            const uint4 d = read_at<uint4>(slice, groups + index);
            w[0] = c.x, w[1] = c.y, w[2] = c.z, w[3] = c.w, w[4] = d.x, w[5] = d.y, w[6] = d.z, w[7] = d.w;
        } else if constexpr (has_levels(TYPE) && REUSED) {
            look_up_levels(levels_of(TYPE), c, w);
        } else if constexpr (has_levels(TYPE)) {
            look_up_magnitudes<TYPE>(level_words, c, w, g.v);
        } else if constexpr (!REUSED && shift_of<TYPE>(4) != 0) {
            w[0] = c.x & 0x0f0f0f0f, w[1] = c.y & 0x0f0f0f0f, w[2] = c.z & 0x0f0f0f0f, w[3] = c.w & 0x0f0f0f0f;
            w[4] = c.x & 0xf0f0f0f0, w[5] = c.y & 0xf0f0f0f0, w[6] = c.z & 0xf0f0f0f0, w[7] = c.w & 0xf0f0f0f0;
        } else {
            split_nibbles(c, w);
        }
    }
    if constexpr (high_bytes(TYPE) == 4) {
        const uint32_t bits = read_at<uint32_t>(high, index);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] |= (bits >> i & 0x01010101u) << 4;
    }
    if constexpr (high_bytes(TYPE) == 8) add_pairs(read_at<uint2>(high, index), 4, w);
}

// Half of the power of two with this exponent biased by 127; the two smallest are subnormal.
__device__ __forceinline__ float half_power(uint32_t exponent) {
    return __int_as_float(max((int)(exponent << 23) - (1 << 23), (int)(exponent << 21) + (1 << 21)));
}

// A byte less `bias`, by way of the float that has it for its lowest bits.
__device__ __forceinline__ float small_float(uint32_t byte, int bias) {
    return __fsub_rn(__uint_as_float(0x4b000000u | byte), 8388608.0f + (float)bias);
}

// Half of two E4M3 numbers, by way of the half-precision numbers of the same bits.
__device__ __forceinline__ float2 half_e4m3(uint32_t pair) {
    const uint32_t bits = __byte_perm(pair, 0, 0x1404) >> 1;
    const float2 v = __half22float2(reinterpret_cast<const __half2 &>(bits));
    return make_float2(128.0f * v.x, 128.0f * v.y);
}

template <int TYPE>
__device__ __forceinline__ void load_scales(const uint8_t *scales, const uint8_t *blocks, uint32_t index, Group &g) {
    if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0 || TYPE == IQ4_NL) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index));
    } else if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
        const float2 d = __half22float2(read_at<__half2>(blocks, index));
        g.scale[0] = d.x, g.min[0] = -d.y;
    } else if constexpr (TYPE == TQ2_0) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index / 8));
    } else if constexpr (TYPE == BYTES) {
        const float2 pair = read_at<float2>(blocks, index);
        g.scale[0] = pair.x, g.scale[1] = pair.y;
    } else if constexpr (TYPE == MXFP4) {
        g.scale[0] = half_power(scales[index]);
    } else if constexpr (TYPE == NVFP4) {
        const float2 pair = half_e4m3(read_at<uint16_t>(scales, index));
        g.scale[0] = pair.x, g.scale[1] = pair.y;
    } else if constexpr (TYPE == IQ4_XS) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index / 8)) * small_float(scales[index], 32);
    } else if constexpr (TYPE == Q3_K) {
        g.scale[0] = __half2float(read_at<__half>(blocks, index / 8)), g.factors = read_at<uint16_t>(scales, index);
    } else if constexpr (TYPE == Q2_K) {
        const uint32_t pair = read_at<uint16_t>(scales, index);
        const float2 d = __half22float2(read_at<__half2>(blocks, index / 8));
        g.scale[0] = d.x, g.min[0] = d.y;
        g.factors = pair & 0x0f0f, g.min_factors = pair >> 4 & 0x0f0f;
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

// Group `index` of a slice of `groups`. What meets one row of activations alone is unpacked less far than what is
// REUSED: only REUSED bytes are those that `Group` promises.
template <int TYPE, bool REUSED>
__device__ __forceinline__ Group load_group(
    const uint8_t *slice, uint32_t groups, uint32_t index, const LevelWords &level_words = {}) {
    const uint8_t *high = slice + code_bytes(TYPE) * groups, *scales = high + high_bytes(TYPE) * groups;
    Group g;
    load_codes<TYPE, REUSED>(slice, high, groups, index, level_words, g);
    load_scales<TYPE>(scales, scales + scale_bytes(TYPE) * groups, index, g);
    return g;
}

// sum + the products of unsigned and of signed bytes.
__device__ __forceinline__ int add_unsigned(uint32_t w, int x, int sum) {
    int out;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
    return out;
}

// `sum` and the product with 32 activations whose products with the group's bytes are `low` for the lower 16 and `high`
// for the upper ones. Types without has_halves use their sum alone.
template <int TYPE>
__device__ __forceinline__ float add_products(const Group &g, int low, int high, const Meta &meta, float sum) {
    constexpr int OFFSET = offset_of(TYPE);
    const int sums = reinterpret_cast<const int &>(meta.sums);
    float part;
    if constexpr (has_factors(TYPE)) {
        // Sums of a half have at most 14 bits and a sign.
        int both = __dp2a_lo((int)__byte_perm(low, high, 0x5410), g.factors, 0);
        if constexpr (OFFSET != 0) both -= OFFSET * __dp2a_lo(sums, g.factors, 0);
        part = __fmul_rn(g.scale[0], (float)both);
        if constexpr (has_min(TYPE)) part = __fmaf_rn(-g.min[0], (float)__dp2a_lo(sums, g.min_factors, 0), part);
    } else if constexpr (has_halves(TYPE)) {
        low -= OFFSET * meta.sums.x, high -= OFFSET * meta.sums.y;
        part = __fmaf_rn(g.scale[0], (float)low, __fmul_rn(g.scale[1], (float)high));
    } else {
        const int both = __dp2a_lo(sums, 0x0101, 0);
        part = __fmul_rn(g.scale[0], (float)(low + high - OFFSET * both));
        if constexpr (has_min(TYPE)) part = __fmaf_rn(-g.min[0], (float)both, part);
    }
    return __fmaf_rn(meta.scale, part, sum);
}

__device__ __forceinline__ int add_words(const int *w, const int4 &x, int sum) {
    return __dp4a(w[3], x.w, __dp4a(w[2], x.z, __dp4a(w[1], x.y, __dp4a(w[0], x.x, sum))));
}

// The products of 16 activations with words FIRST to FIRST + 3, of which some stand above their places.
template <int TYPE, int FIRST>
__device__ __forceinline__ int add_shifted(const int (&w)[8], const int4 &x) {
    const int values[4] = {x.x, x.y, x.z, x.w};
    int total = 0;
#pragma unroll
    for (int shift = 0; shift < 8; shift++) {
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (shift_of<TYPE>(FIRST + i) == shift) sum = add_unsigned(w[FIRST + i], values[i], sum);
        }
        total += sum >> shift;
    }
    return total;
}

// `sum` and the product with 32 activations, the lower 16 in `a`; exact within the group.
template <int TYPE, bool REUSED>
__device__ __forceinline__ float add_group(const Group &g, const int4 &a, const int4 &b, const Meta &meta, float sum) {
    int low, high;
    if constexpr (REUSED && !has_halves(TYPE)) {
        // One sum for both halves.
        low = add_words(g.w + 4, b, add_words(g.w, a, 0)), high = 0;
    } else if constexpr (REUSED || code_bytes(TYPE) == 32) {
        low = add_words(g.w, a, 0), high = add_words(g.w + 4, b, 0);
    } else if constexpr (has_levels(TYPE)) {
        constexpr bool BEGINS_BELOW = levels_of(TYPE).words[0] >> 31 != 0;
        const int *above = BEGINS_BELOW ? g.v : g.w, *below = BEGINS_BELOW ? g.w : g.v;
        if constexpr (has_halves(TYPE)) {
            low = add_words(above, a, 0) - add_words(below, a, 0),
            high = add_words(above + 4, b, 0) - add_words(below + 4, b, 0);
        } else {
            low = add_words(above + 4, b, add_words(above, a, 0)) - add_words(below + 4, b, add_words(below, a, 0)),
            high = 0;
        }
    } else {
        low = add_shifted<TYPE, 0>(g.w, a), high = add_shifted<TYPE, 4>(g.w, b);
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
