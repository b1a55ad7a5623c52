// Stages of a ring: some rows of a quantized matrix and a slice of columns, as they stand in memory; and how a lane of
// the warps that multiply takes its group of a row from there. The eight warps of a team divide the columns of a slice.
#pragma once
#include "gemm/segments.cuh"
#include "ptx/mbarrier.cuh"

constexpr uint32_t TEAM_WARPS = 8, MOST_STAGES = 16;

// The distance of rows in a stage: an odd number of 16 bytes, five more than a multiple of eight, so that rows r and r
// + 4 have other banks.
__host__ __device__ constexpr uint32_t stage_stride(uint32_t dtype) {
    return (bytes_of_slice(dtype, SLICE_GROUPS) / 16 + 2) / 8 * 128 + 80;
}
// The same where the type is only known when the kernel runs.
__device__ __forceinline__ uint32_t stride_of(uint32_t dtype) {
    return dtype == Q8_0 ? 1104 : 592 + 128 * (dtype - Q4_K);
}
static_assert(
    stage_stride(Q4_K) == 592 && stage_stride(Q5_K) == 720 && stage_stride(Q6_K) == 848 && stage_stride(Q8_0) == 1104,
    "");

struct TileCoord {
    uint32_t segment, row;
};

// Of a tile of so many rows; gated ones have as many of either matrix, eight of the first and eight of the second in
// turn.
template <uint32_t ROWS>
__device__ __forceinline__ TileCoord coord_of_tile(const TensorArgs &args, uint32_t tile) {
    if (args.gated.x != nullptr) return TileCoord{0, tile * (ROWS / 2)};
    TileCoord corner{0, tile};
    while (corner.segment + 1 < args.count && corner.row >= args.segments[corner.segment].matrix.rows / ROWS)
        corner.row -= args.segments[corner.segment++].matrix.rows / ROWS;
    corner.row *= ROWS;
    return corner;
}

// A place in a ring, and the parity of its round.
struct PipelineState {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void skip(uint32_t count, uint32_t stages) {
        stage += count;
        if (stage >= stages) stage -= stages, parity ^= 1;
    }
};

// The weight row of a lane among eight.
__device__ __forceinline__ uint32_t row_of_lane() {
    const uint32_t lane = threadIdx.x % WARP;
    return lane / 8 + lane / 4 % 2 * 4;
}

// What a lane reads of a row before it computes anything: its group's codes, high bits, scales, and its block's.
template <int TYPE>
struct Raw {
    uint32_t words[TYPE == Q8_0 ? 8 : 4], high[TYPE == Q6_K ? 2 : 1], own, block;
};

// Where a lane finds its group in the first row of a stage.
struct Places {
    uint32_t codes, upper, high, scales, blocks;
};

template <int TYPE>
__device__ __forceinline__ Places places_of(uint32_t groups) {
    constexpr uint32_t STRIDE = stage_stride(TYPE);
    const uint32_t row = row_of_lane(), group = threadIdx.x / WARP % TEAM_WARPS * 4 + threadIdx.x % 4;
    Places p;
    p.codes = row * STRIDE + group * 16, p.upper = p.codes + groups * 16;
    p.high = row * STRIDE + code_bytes(TYPE) * groups + group * high_bytes(TYPE);
    p.scales = row * STRIDE + (code_bytes(TYPE) + high_bytes(TYPE)) * groups + group * 2;
    p.blocks = row * STRIDE + (code_bytes(TYPE) + high_bytes(TYPE) + 2) * groups + group / 8 * (TYPE == Q6_K ? 2 : 4);
    return p;
}

// All of that but what a block of groups shares.
template <int TYPE>
__device__ __forceinline__ void load_own(Raw<TYPE> &to, const Places &p, uint32_t at) {
    const uint4 c = load_shared_as<uint4>(at + p.codes);
    to.words[0] = c.x, to.words[1] = c.y, to.words[2] = c.z, to.words[3] = c.w;
    if constexpr (TYPE == Q8_0) {
        const uint4 d = load_shared_as<uint4>(at + p.upper);
        to.words[4] = d.x, to.words[5] = d.y, to.words[6] = d.z, to.words[7] = d.w;
    }
    if constexpr (TYPE == Q5_K) to.high[0] = load_shared_as<uint32_t>(at + p.high);
    if constexpr (TYPE == Q6_K) {
        const uint2 bits = load_shared_as<uint2>(at + p.high);
        to.high[0] = bits.x, to.high[1] = bits.y;
    }
    to.own = load_shared_as<uint16_t>(at + p.scales), to.block = 0;
}

// What a block of groups shares, none for Q8_0.
template <int TYPE>
__device__ __forceinline__ uint32_t load_block_of(const Places &p, uint32_t at) {
    if constexpr (TYPE == Q8_0) return 0;
    else if constexpr (TYPE == Q6_K) return load_shared_as<uint16_t>(at + p.blocks);
    else return load_shared_as<uint32_t>(at + p.blocks);
}

template <int TYPE>
__device__ __forceinline__ void load_raw(Raw<TYPE> &to, const Places &p, uint32_t at) {
    load_own(to, p, at);
    to.block = load_block_of<TYPE>(p, at);
}
