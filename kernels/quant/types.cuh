// The types of weights on the device, and how quantized ones lie there. types.def lists them with their bytes.
//
// A row of a quantized matrix is cut into slices of 1024 columns, one group of 32 for each lane of a warp, the last
// slice of the row perhaps shorter. A slice of g groups holds, in this order, padded to 16 bytes:
//   codes   32 bytes a group: 16 bytes a group with values 0 to 15, then 16 bytes a group with values 16 to 31;
//           16: the low 4 bits of values 4w to 4w + 3 in low nibbles of the bytes of word w, of values 16 + 4w and on
//           in high ones; where codes are numbers of levels, four nibbles in a row of word w are values 4w and on, the
//           next four 16 + 4w and on; 8: value 4w + b at bit 8b + 2(w % 4) of word w / 4
//   high    4 bytes a group: the next bit of value 4w + b at bit 8b + w;
//           8: the next two bits of value 4w + b at bit 8b + 2(w % 4) of word w / 4
//           Q3_K lies across the two words of `codes` and the one of `high`: in byte b of these three, bits 0 to 2 and
//           3 to 5 are value 4w + b of w 0 and 1, of 2 and 4, and of 5 and 6; bits 6 and 7 of the first are the upper
//           bits of w 3, those of the last the upper bits of w 7, and those of the second the lowest bits of both
//   scales  bytes for each group:
//           Q4_K, Q5_K scale and minimum; Q6_K, Q3_K the signed scales of both halves; IQ4_XS a scale with 32 added;
//           MXFP4 an exponent biased by 127; NVFP4 the E4M3 scales of both halves; Q2_K for each half the scale in the
//           low nibble and the minimum in the high one
//   blocks  two bytes a group: its scale, a half; four: scale and minimum, which is added, halves; eight: the scales of
//           both halves, floats; shared by 8 groups, two bytes: the factor of their scales, a half; four: also that of
//           their minimums
#pragma once
#include <stdint.h>

enum DType : uint32_t {
#define WEIGHT_TYPE(name, ...) name,
#include "quant/types.def"
};

constexpr int SLICE_GROUPS = 32;

// Bytes of a slice before the part that follows the codes, the high bits, the scales, for each of its groups; of its
// blocks for each group, or for each 8 of them.
struct GroupBytes {
    uint32_t codes, high, scales, floats, shared;
};
__host__ __device__ constexpr GroupBytes bytes_of_group(uint32_t dtype) {
    switch (dtype) {
#define WEIGHT_TYPE(name, codes, high, scales, floats, shared, offset) \
    case name: return {codes, high, scales, floats, shared};
#include "quant/types.def"
        default: return {};
    }
}
__host__ __device__ constexpr uint32_t code_bytes(uint32_t dtype) { return bytes_of_group(dtype).codes; }
__host__ __device__ constexpr uint32_t high_bytes(uint32_t dtype) { return bytes_of_group(dtype).high; }
__host__ __device__ constexpr uint32_t scale_bytes(uint32_t dtype) { return bytes_of_group(dtype).scales; }

// The same of the types that have GEMM kernels of their own, in few instructions where a type is only known when the
// kernel runs.
__host__ __device__ constexpr GroupBytes bytes_of_gemm_group(uint32_t dtype) {
    return {dtype == Q8_0 ? 32u : 16u,
        dtype == Q6_K       ? 8u
            : dtype == Q5_K ? 4u
                            : 0u,
        dtype == Q8_0 ? 0u : 2u, dtype == Q8_0 ? 2u : 0u,
        dtype == Q8_0       ? 0u
            : dtype == Q6_K ? 2u
                            : 4u};
}
constexpr bool is_gemm_group(uint32_t dtype) {
    const GroupBytes a = bytes_of_group(dtype), b = bytes_of_gemm_group(dtype);
    return a.codes == b.codes && a.high == b.high && a.scales == b.scales && a.floats == b.floats &&
        a.shared == b.shared;
}
static_assert(
    is_gemm_group(Q8_0) && is_gemm_group(Q4_K) && is_gemm_group(Q5_K) && is_gemm_group(Q6_K), "as in types.def");

// Bytes of a slice of so many groups, a multiple of 8 where they share something.
__host__ __device__ constexpr uint32_t bytes_of_slice(uint32_t dtype, uint32_t groups) {
    const GroupBytes own = bytes_of_group(dtype);
    return ((own.codes + own.high + own.scales + own.floats) * groups + own.shared * groups / 8 + 15) / 16 * 16;
}

// Whether rows may end within a quad of groups: nothing is shared by 256 columns.
__host__ __device__ constexpr bool has_short_slices(uint32_t dtype) { return bytes_of_group(dtype).shared == 0; }

// What a code means: value = scale * (code - offset) - min, with a scale for each half of a group, or one for both;
// minimums likewise, if any.
__host__ __device__ constexpr int offset_of(uint32_t dtype) {
    switch (dtype) {
#define WEIGHT_TYPE(name, codes, high, scales, floats, shared, offset) \
    case name: return offset;
#include "quant/types.def"
        default: return 0;
    }
}
__host__ __device__ constexpr bool has_halves(uint32_t dtype) {
    return dtype == Q6_K || dtype == Q2_K || dtype == Q3_K || dtype == NVFP4 || dtype == BYTES;
}
__host__ __device__ constexpr bool has_min(uint32_t dtype) {
    return dtype == Q4_K || dtype == Q5_K || dtype == Q4_1 || dtype == Q5_1 || dtype == Q2_K;
}

// Whether the scales of halves are small whole numbers times one scale: sums of both are exact then.
__host__ __device__ constexpr bool has_factors(uint32_t dtype) { return dtype == Q2_K || dtype == Q3_K; }

// Whether codes have two bits, and nothing stands elsewhere.
__host__ __device__ constexpr bool has_two_bits(uint32_t dtype) {
    return code_bytes(dtype) == 8 && high_bytes(dtype) == 0;
}

// Whether codes are numbers of levels.
__host__ __device__ constexpr bool has_levels(uint32_t dtype) {
    return dtype == IQ4_NL || dtype == IQ4_XS || dtype == MXFP4 || dtype == NVFP4;
}

// Sixteen levels, a signed byte each: those of IQ4_NL and IQ4_XS, and the E2M1 numbers, doubled.
struct Levels {
    uint32_t words[4];
};

__host__ __device__ constexpr Levels levels_of(uint32_t dtype) {
    return dtype == MXFP4 || dtype == NVFP4 ? Levels{{0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc}}
                                            : Levels{{0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535}};
}

// The same without their signs; those of one half are negative.
__host__ __device__ constexpr Levels magnitudes_of(uint32_t dtype) {
    Levels table = levels_of(dtype);
    for (int i = 0; i < 4; i++) {
        uint32_t word = 0;
        for (int shift = 0; shift < 32; shift += 8) {
            const uint32_t level = table.words[i] >> shift & 255;
            word |= (level > 127 ? 256 - level : level) << shift;
        }
        table.words[i] = word;
    }
    return table;
}
