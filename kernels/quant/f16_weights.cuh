// Weights as 16-bit floats, as operands of a warpgroup's matrix instructions: a thread (g, t), with g = lane / 4 and t
// = lane % 4, makes those of group t of four from 32 codes of row g, or g + 8. Eight steps of 16 columns have four
// values of a group each, in the order of f16_layout.cuh.
#pragma once
#include "ptx/cp_async.cuh"
#include "quant/f16_layout.cuh"
#include "quant/unpack.cuh"

// Bytes of four groups of a row: of a plane of codes, and of high bits.
constexpr uint32_t F16_CODES = 64;
__host__ __device__ constexpr uint32_t f16_planes(uint32_t dtype) { return code_bytes(dtype) / 16; }
__host__ __device__ constexpr uint32_t f16_high(uint32_t dtype) { return 4 * high_bytes(dtype); }
// All of them: beside those, scales and the word with the block's.
__host__ __device__ constexpr uint32_t f16_row_bytes(uint32_t dtype) {
    return f16_planes(dtype) * F16_CODES + f16_high(dtype) + (dtype == Q8_0 ? 8 : 12);
}

// A number in the low bits of two halves makes them 1024 and that number.
constexpr uint32_t HALF_1024 = 0x64006400u;

__device__ __forceinline__ __half2 as_halves(uint32_t bits) { return reinterpret_cast<const __half2 &>(bits); }
__device__ __forceinline__ uint32_t as_bits(const __half2 &v) { return reinterpret_cast<const uint32_t &>(v); }

// (a & b) | c
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// The scales of a group: for its lower and upper half, or for all of it, and what is added; where upper nibbles stay in
// their place, the upper scale is a sixteenth.
struct F16Scales {
    __half2 scale[2], shift;
};

// What codes are centered at, so that what is added is small, and rounded little.
template <int TYPE>
constexpr int CENTER = TYPE == Q4_K ? 8
    : TYPE == Q5_K                  ? 16
    : TYPE == Q6_K                  ? 32
                                    : 128;

// From a group's own scales and those of its block.
template <int TYPE>
__device__ __forceinline__ F16Scales f16_scales(uint32_t own, uint32_t block) {
    F16Scales out;
    if constexpr (TYPE == Q8_0) {
        out.scale[0] = out.scale[1] = __half2half2(__ushort_as_half((unsigned short)own));
    } else if constexpr (TYPE == Q6_K) {
        const float d = __half2float(__ushort_as_half((unsigned short)block));
        out.scale[0] = __float2half2_rn(d * (float)(int8_t)(own & 0xff)),
        out.scale[1] = __float2half2_rn(d * (float)(int8_t)(own >> 8));
    } else {
        const float2 d = __half22float2(as_halves(block));
        const float scale = d.x * (float)(own & 0xff), least = d.y * (float)(own >> 8);
        out.scale[0] = __float2half2_rn(scale), out.scale[1] = __float2half2_rn(TYPE == Q4_K ? scale * 0.0625f : scale);
        out.shift = __float2half2_rn(__fmaf_rn((float)CENTER<TYPE>, scale, -least));
    }
    return out;
}

// Two codes on top of 1024 each, TIMES as large as they are.
template <int TYPE, int TIMES>
__device__ __forceinline__ uint32_t halves_of(uint32_t codes, const __half2 &scale, const __half2 &shift) {
    const __half2 centered = __hsub2(as_halves(codes), __float2half2_rn(1024.0f + TIMES * CENTER<TYPE>));
    return as_bits(has_min(TYPE) ? __hfma2(centered, scale, shift) : __hmul2(centered, scale));
}

// Four codes in the bytes of a word: those of elements 0 and 2, then of 1 and 3.
template <int TYPE>
__device__ __forceinline__ void bytes_to_halves(
    uint32_t bytes, const __half2 &scale, const __half2 &shift, uint32_t &even, uint32_t &odd) {
    even = halves_of<TYPE, 1>(pick_bytes(bytes, HALF_1024, 0x5250), scale, shift);
    odd = halves_of<TYPE, 1>(pick_bytes(bytes, HALF_1024, 0x5351), scale, shift);
}

// Bits up or, where negative, down.
template <int BY>
__device__ __forceinline__ uint32_t moved(uint32_t bits) {
    return BY < 0 ? bits >> -BY : bits << (BY < 0 ? 0 : BY);
}

// Where a thread's first row has its group: codes, high bits, scales, and scales of blocks, as shared addresses.
struct F16Rows {
    uint32_t codes, high, scales, blocks;
};

// A thread's group of a row on its way from shared memory to operands, half of them at a time: the first two words of
// codes, or the others.
template <int TYPE>
struct F16Group {
    uint32_t words[TYPE == Q8_0 ? 8 : 4], high[TYPE == Q6_K ? 2 : 1];
    F16Scales scales;

    // Of the row that many rows below; planes of codes are PLANE bytes apart, and `skew` is that of blocks' scales in
    // their words.
    template <uint32_t BELOW, uint32_t PLANE>
    __device__ __forceinline__ void load(const F16Rows &rows, uint32_t skew) {
        const uint32_t own = load_shared_as<uint16_t>(rows.scales + BELOW * 8), at = rows.codes + BELOW * F16_CODES;
        uint32_t block = 0;
        if constexpr (TYPE != Q8_0) block = load_shared_as<uint32_t>(rows.blocks + BELOW * 4) >> skew;
        scales = f16_scales<TYPE>(own, block);
        const uint4 c = load_shared_as<uint4>(at);
        words[0] = c.x, words[1] = c.y, words[2] = c.z, words[3] = c.w;
        if constexpr (TYPE == Q8_0) {
            const uint4 d = load_shared_as<uint4>(at + PLANE);
            words[4] = d.x, words[5] = d.y, words[6] = d.z, words[7] = d.w;
        }
        if constexpr (TYPE == Q5_K) high[0] = load_shared_as<uint32_t>(rows.high + BELOW * f16_high(TYPE));
        if constexpr (TYPE == Q6_K) {
            const uint2 bits = load_shared_as<uint2>(rows.high + BELOW * f16_high(TYPE));
            high[0] = bits.x, high[1] = bits.y;
        }
    }

    // Operands of word W: elements 0 and 2 of its lower values, 1 and 3, and the same of its upper ones.
    template <int W>
    __device__ __forceinline__ void unpack(uint32_t (&to)[4]) const {
        const uint32_t v = words[W];
        const F16Scales &s = scales;
        if constexpr (TYPE == Q8_0) {
            bytes_to_halves<TYPE>(v ^ 0x80808080, s.scale[0], s.shift, to[0], to[1]);
            bytes_to_halves<TYPE>(words[4 + W] ^ 0x80808080, s.scale[0], s.shift, to[2], to[3]);
        } else if constexpr (TYPE == Q4_K) {
            const uint32_t odd = v >> 8;
            to[0] = halves_of<TYPE, 1>(and_or(v, 0x000f000f, HALF_1024), s.scale[0], s.shift);
            to[1] = halves_of<TYPE, 1>(and_or(odd, 0x000f000f, HALF_1024), s.scale[0], s.shift);
            to[2] = halves_of<TYPE, 16>(and_or(v, 0x00f000f0, HALF_1024), s.scale[1], s.shift);
            to[3] = halves_of<TYPE, 16>(and_or(odd, 0x00f000f0, HALF_1024), s.scale[1], s.shift);
        } else if constexpr (TYPE == Q5_K) {
            bytes_to_halves<TYPE>(
                and_or(moved<4 - W>(high[0]), 0x10101010, v & 0x0f0f0f0f), s.scale[0], s.shift, to[0], to[1]);
            bytes_to_halves<TYPE>(
                and_or(moved<-W>(high[0]), 0x10101010, v >> 4 & 0x0f0f0f0f), s.scale[1], s.shift, to[2], to[3]);
        } else {
            bytes_to_halves<TYPE>(
                and_or(moved<4 - 2 * W>(high[0]), 0x30303030, v & 0x0f0f0f0f), s.scale[0], s.shift, to[0], to[1]);
            bytes_to_halves<TYPE>(
                and_or(moved<4 - 2 * W>(high[1]), 0x30303030, v >> 4 & 0x0f0f0f0f), s.scale[1], s.shift, to[2], to[3]);
        }
    }
};

// Operands of the two steps of word W from a thread's groups of both of its rows.
template <int W, int TYPE>
__device__ __forceinline__ void unpack_word(
    const F16Group<TYPE> &first, const F16Group<TYPE> &second, uint32_t (&a)[4], uint32_t (&b)[4]) {
    uint32_t x[4], y[4];
    first.template unpack<W>(x), second.template unpack<W>(y);
    a[0] = x[0], a[1] = y[0], a[2] = x[1], a[3] = y[1];
    b[0] = x[2], b[1] = y[2], b[2] = x[3], b[3] = y[3];
}

// Operands of steps 4 * PART to 4 * PART + 3.
template <int PART, int TYPE>
__device__ __forceinline__ void unpack_steps(
    const F16Group<TYPE> &first, const F16Group<TYPE> &second, uint32_t (&a)[4][4]) {
    unpack_word<2 * PART>(first, second, a[0], a[1]);
    unpack_word<2 * PART + 1>(first, second, a[2], a[3]);
}
