// Blocks as a GGUF file holds them into the slices of `Matrix`, once, while a model is loaded. A thread a group of 32 values.
#include "common/device.cuh"

struct RepackArgs {
    const uint8_t *raw;  // whole blocks
    Matrix out;
    uint64_t first;  // the group that `raw` begins with
    uint64_t count;  // groups in `raw`
};

// Scale and minimum of group `s` of a Q4_K or Q5_K block.
__device__ uchar2 six_bit_scales(const uint8_t *scales, uint32_t s) {
    if (s < 4) return make_uchar2(scales[s] & 63, scales[s + 4] & 63);
    return make_uchar2((scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4, scales[s + 4] >> 4 | (scales[s] >> 6) << 4);
}

__device__ uint32_t code_q5k(const uint8_t *block, uint32_t s, uint32_t i) {
    return (block[48 + s / 2 * 32 + i] >> (s % 2 * 4) & 15) | (block[16 + i] >> s & 1) << 4;
}

__device__ uint32_t code_q6k(const uint8_t *block, uint32_t s, uint32_t i) {
    const uint32_t v = s * 32 + i, half = v / 128, at = v % 128;
    const uint32_t low = block[half * 64 + at % 64] >> (at / 64 * 4) & 15;
    return low | (block[128 + half * 32 + i] >> (s % 4 * 2) & 3) << 4;
}

__device__ uint32_t code_of(uint32_t dtype, const uint8_t *block, uint32_t s, uint32_t i) {
    switch (dtype) {
        case Q4_K: return block[16 + s / 2 * 32 + i] >> (s % 2 * 4) & 15;
        case Q5_K: return code_q5k(block, s, i);
        default: return code_q6k(block, s, i);
    }
}

// One group of a slice: where its parts go.
struct Place {
    uint8_t *codes, *high, *scales, *blocks;
    uint32_t groups, lane;
};

__device__ Place place_of(const Matrix &m, uint64_t group) {
    const uint32_t groups_a_row = m.cols / 32, at = group % groups_a_row, slice = at / SLICE_GROUPS;
    Place p;
    p.lane = at % SLICE_GROUPS, p.groups = min((uint32_t)SLICE_GROUPS, groups_a_row - slice * SLICE_GROUPS);
    p.codes = const_cast<uint8_t *>(m.data) + group / groups_a_row * m.row_bytes + slice * m.slice_bytes;
    p.high = p.codes + code_bytes(m.dtype) * p.groups;
    p.scales = p.high + high_bytes(m.dtype) * p.groups;
    p.blocks = p.scales + scale_bytes(m.dtype) * p.groups;
    return p;
}

__device__ void pack_codes(uint32_t dtype, const Place &to, const uint8_t *block, uint32_t s) {
    uint32_t low[4] = {}, high[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t code = code_of(dtype, block, s, i), word = i / 4, byte = i % 4;
        low[word % 4] |= (code & 15) << (8 * byte + word / 4 * 4);
        if (dtype == Q5_K) high[0] |= code >> 4 << (8 * byte + word);
        if (dtype == Q6_K) high[word / 4] |= code >> 4 << (8 * byte + 2 * (word % 4));
    }
    reinterpret_cast<uint4 *>(to.codes)[to.lane] = make_uint4(low[0], low[1], low[2], low[3]);
    uint32_t *out = reinterpret_cast<uint32_t *>(to.high);
    if (dtype == Q5_K) out[to.lane] = high[0];
    if (dtype == Q6_K) out[2 * to.lane] = high[0], out[2 * to.lane + 1] = high[1];
}

__device__ void repack_q8(const Place &to, const uint8_t *block) {
    to.blocks[2 * to.lane] = block[0], to.blocks[2 * to.lane + 1] = block[1];
    for (uint32_t i = 0; i < 32; i++) to.codes[(i / 16 * to.groups + to.lane) * 16 + i % 16] = block[2 + i];
}

extern "C" __global__ void __launch_bounds__(256) repack(RepackArgs args) {
    const uint64_t index = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= args.count) return;
    const uint32_t dtype = args.out.dtype;
    const uint64_t group = args.first + index;
    const Place to = place_of(args.out, group);
    if (dtype == Q8_0) return repack_q8(to, args.raw + index * 34);
    const uint32_t bytes = dtype == Q4_K ? 144 : dtype == Q5_K ? 176 : 210, s = group % 8;
    const uint8_t *block = args.raw + index / 8 * bytes;
    pack_codes(dtype, to, block, s);
    uint8_t *scales = to.scales + 2 * to.lane;
    if (dtype == Q6_K) {
        scales[0] = block[192 + 2 * s], scales[1] = block[193 + 2 * s];
        if (s == 0) to.blocks[to.lane / 8 * 2] = block[208], to.blocks[to.lane / 8 * 2 + 1] = block[209];
        return;
    }
    const uchar2 pair = six_bit_scales(block + 4, s);
    scales[0] = pair.x, scales[1] = pair.y;
    if (s == 0) {
        for (int i = 0; i < 4; i++) to.blocks[to.lane / 8 * 4 + i] = block[i];
    }
}
