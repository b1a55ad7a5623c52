// Blocks as a GGUF file holds them into the slices of `Matrix`, once, while a model is loaded. A thread a group of 32
// values.
//
// What is BYTES on the device comes as groups of 32 signed codes and two floats, the scales of their halves.
#include "quant/unpack.cuh"

struct RepackArgs {
    const uint8_t *raw;  // whole blocks
    Matrix out;
    uint64_t first;                      // the group that `raw` begins with
    uint64_t count;                      // groups in `raw`
    uint32_t block_bytes, block_groups;  // of a block: its size, and its groups
};
static_assert(sizeof(RepackArgs) == 64, "as in args.rs");

// Bytes of a block before its codes of 4 bits; those of Q6_K have none.
__device__ constexpr uint32_t before_codes(uint32_t dtype) {
    switch (dtype) {
        case MXFP4: return 1;
        case Q8_0:
        case Q4_0:
        case IQ4_NL: return 2;
        case Q4_1:
        case NVFP4: return 4;
        case Q5_0: return 6;
        case Q5_1:
        case IQ4_XS: return 8;
        case Q2_K:
        case Q4_K: return 16;
        case Q3_K: return 32;
        case Q5_K: return 48;
        default: return 0;
    }
}

__device__ __forceinline__ uint32_t nibble(const uint8_t *codes, uint32_t i) {
    return codes[i % 16] >> (i / 16 * 4) & 15;
}

// Two bits of value `i` of group `s`, where 32 bytes hold those of 4 groups.
__device__ __forceinline__ uint32_t two_bits(const uint8_t *codes, uint32_t s, uint32_t i) {
    return codes[s / 4 * 32 + i] >> (s % 4 * 2) & 3;
}

// Code of value `i` of group `s` of a block.
template <int TYPE>
__device__ __forceinline__ uint32_t code_of(const uint8_t *block, uint32_t s, uint32_t i) {
    const uint8_t *codes = block + before_codes(TYPE);
    if constexpr (code_bytes(TYPE) == 32) return codes[i];
    if constexpr (has_two_bits(TYPE)) return two_bits(codes, s, i);
    if constexpr (TYPE == Q3_K) return two_bits(codes, s, i) | (block[i] >> s & 1) << 2;
    if constexpr (TYPE == Q4_K) return codes[s / 2 * 32 + i] >> (s % 2 * 4) & 15;
    if constexpr (TYPE == Q5_K) return (codes[s / 2 * 32 + i] >> (s % 2 * 4) & 15) | (block[16 + i] >> s & 1) << 4;
    if constexpr (TYPE == Q6_K) {
        const uint32_t low = codes[s / 4 * 64 + s % 2 * 32 + i] >> (s % 4 / 2 * 4) & 15;
        return low | two_bits(block + 128, s, i) << 4;
    }
    if constexpr (TYPE == IQ4_XS) return nibble(codes + 16 * s, i);
    if constexpr (TYPE == NVFP4) return codes[16 * s + i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15;
    uint32_t code = nibble(codes, i);
    if constexpr (TYPE == Q5_0 || TYPE == Q5_1) code |= ((codes - 4)[i / 8] >> (i % 8) & 1) << 4;
    return code;
}

// One group of a slice: where its parts go.
struct Place {
    uint8_t *codes, *high, *scales, *blocks;
    uint32_t groups, lane;
};

template <int TYPE>
__device__ __forceinline__ Place place_of(const Matrix &m, uint64_t group) {
    const uint32_t groups_a_row = m.cols / 32, at = group % groups_a_row, slice = at / SLICE_GROUPS;
    Place p;
    p.lane = at % SLICE_GROUPS, p.groups = min((uint32_t)SLICE_GROUPS, groups_a_row - slice * SLICE_GROUPS);
    p.codes = const_cast<uint8_t *>(m.data) + group / groups_a_row * m.row_bytes + slice * m.slice_bytes;
    p.high = p.codes + code_bytes(TYPE) * p.groups;
    p.scales = p.high + high_bytes(TYPE) * p.groups;
    p.blocks = p.scales + scale_bytes(TYPE) * p.groups;
    return p;
}

// Codes of 3 bits in three words.
template <int TYPE>
__device__ __forceinline__ void pack_threes(const Place &to, const uint8_t *block, uint32_t s) {
    uint32_t words[3] = {};
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t code = code_of<TYPE>(block, s, i), w = i / 4, bit = 8 * (i % 4);
        if (w % 4 == 3) {
            words[w / 4 * 2] |= code >> 1 << (bit + 6), words[1] |= (code & 1) << (bit + 6 + w / 4);
        } else {
            const uint32_t place = w - w / 4;
            words[place / 2] |= code << (bit + place % 2 * 3);
        }
    }
    reinterpret_cast<uint2 *>(to.codes)[to.lane] = make_uint2(words[0], words[1]);
    reinterpret_cast<uint32_t *>(to.high)[to.lane] = words[2];
}

template <int TYPE>
__device__ __forceinline__ void pack_codes(const Place &to, const uint8_t *block, uint32_t s) {
    if constexpr (TYPE == Q3_K) return pack_threes<TYPE>(to, block, s);
    uint32_t low[8] = {}, high[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t code = code_of<TYPE>(block, s, i), word = i / 4, byte = i % 4;
        if constexpr (code_bytes(TYPE) == 32) low[word] |= code << (8 * byte);
        else if constexpr (code_bytes(TYPE) == 8) low[word / 4] |= (code & 3) << (8 * byte + 2 * (word % 4));
        else if constexpr (has_levels(TYPE)) low[word % 4] |= code << (word / 4 * 16 + 4 * byte);
        else low[word % 4] |= (code & 15) << (8 * byte + word / 4 * 4);
        if constexpr (high_bytes(TYPE) == 4) high[0] |= code >> 4 << (8 * byte + word);
        if constexpr (high_bytes(TYPE) == 8) high[word / 4] |= code >> 4 << (8 * byte + 2 * (word % 4));
    }
    if constexpr (code_bytes(TYPE) == 8) {
        reinterpret_cast<uint2 *>(to.codes)[to.lane] = make_uint2(low[0], low[1]);
    } else {
        reinterpret_cast<uint4 *>(to.codes)[to.lane] = make_uint4(low[0], low[1], low[2], low[3]);
    }
    if constexpr (code_bytes(TYPE) == 32) {
        reinterpret_cast<uint4 *>(to.codes)[to.groups + to.lane] = make_uint4(low[4], low[5], low[6], low[7]);
    }
    if constexpr (high_bytes(TYPE) == 4) reinterpret_cast<uint32_t *>(to.high)[to.lane] = high[0];
    if constexpr (high_bytes(TYPE) == 8) reinterpret_cast<uint2 *>(to.high)[to.lane] = make_uint2(high[0], high[1]);
}

// Scale and minimum of group `s` of a Q4_K or Q5_K block.
__device__ __forceinline__ uchar2 six_bit_scales(const uint8_t *scales, uint32_t s) {
    if (s < 4) return make_uchar2(scales[s] & 63, scales[s + 4] & 63);
    return make_uchar2((scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4, scales[s + 4] >> 4 | (scales[s] >> 6) << 4);
}

// Scale of 16 values of a Q3_K block.
__device__ __forceinline__ uint32_t scale_q3k(const uint8_t *scales, uint32_t half) {
    const uint32_t low = scales[half % 8] >> (half / 8 * 4) & 15;
    return (low | (scales[8 + half % 4] >> (half / 4 * 2) & 3) << 4) - 32;
}

// An E4M3 scale without its sign; the code for "not a number" means zero, but not where the sign is set.
__device__ __forceinline__ uint32_t scale_nvfp4(uint32_t bits) { return bits == 0x7f ? 0 : bits & 0x7f; }

__device__ __forceinline__ uint32_t scale_iq4xs(const uint8_t *block, uint32_t s) {
    const uint32_t low = block[4 + s / 2] >> (s % 2 * 4) & 15, high = block[2 + s / 4] >> (s % 4 * 2) & 3;
    return low | high << 4;
}

// The bytes of the scales of group `s`.
template <int TYPE>
__device__ __forceinline__ void pack_scales(uint8_t *to, const uint8_t *block, uint32_t s) {
    if constexpr (TYPE == MXFP4) to[0] = block[0];
    if constexpr (TYPE == IQ4_XS) to[0] = scale_iq4xs(block, s);
    if constexpr (TYPE == NVFP4) to[0] = scale_nvfp4(block[2 * s]), to[1] = scale_nvfp4(block[2 * s + 1]);
    if constexpr (TYPE == Q2_K) to[0] = block[2 * s], to[1] = block[2 * s + 1];
    if constexpr (TYPE == Q3_K) to[0] = scale_q3k(block + 96, 2 * s), to[1] = scale_q3k(block + 96, 2 * s + 1);
    if constexpr (TYPE == Q6_K) to[0] = block[192 + 2 * s], to[1] = block[193 + 2 * s];
    if constexpr (TYPE == Q4_K || TYPE == Q5_K) {
        const uchar2 pair = six_bit_scales(block + 4, s);
        to[0] = pair.x, to[1] = pair.y;
    }
}

// Where a block has its floats, and their bytes.
__device__ constexpr uint2 floats_of(uint32_t dtype) {
    switch (dtype) {
        case Q4_1:
        case Q5_1:
        case Q4_K:
        case Q5_K: return uint2{0, 4};
        case Q2_K: return uint2{80, 4};
        case TQ2_0: return uint2{64, 2};
        case Q3_K: return uint2{108, 2};
        case Q6_K: return uint2{208, 2};
        case BYTES: return uint2{32, 8};
        case MXFP4:
        case NVFP4: return uint2{0, 0};
        default: return uint2{0, 2};
    }
}

extern "C" __global__ void __launch_bounds__(256) repack(RepackArgs args) {
    const uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.count) return;
    const uint8_t *block = args.raw + index / args.block_groups * args.block_bytes;
    const uint32_t s = index % args.block_groups;
    by_quantized_type(args.out.dtype, [&](auto type) {
        constexpr int TYPE = decltype(type)::value;
        const Place to = place_of<TYPE>(args.out, args.first + index);
        pack_codes<TYPE>(to, block, s);
        pack_scales<TYPE>(to.scales + scale_bytes(TYPE) * to.lane, block, s);
        constexpr uint2 FLOATS = floats_of(TYPE);
        if (s != 0) return;
        for (int i = 0; i < (int)FLOATS.y; i++)
            to.blocks[to.lane / args.block_groups * FLOATS.y + i] = block[FLOATS.x + i];
    });
}
