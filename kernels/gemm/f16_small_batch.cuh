// How products of few rows are divided, and a lane's weights on their way from a stage to operands: what
// gemm_f16_small_batch.cu is made of.
#pragma once
#include "gemm/pipeline.cuh"
#include "quant/f16_weights.cuh"

// Teams of warps, and all that multiply; those that copy weights, beside one that copies x.
constexpr uint32_t TEAMS = 2, MATH_WARPS = TEAMS * TEAM_WARPS;
constexpr uint32_t COPY_WARPS = 2;
constexpr uint32_t REGISTERS = 104, COPY_REGISTERS = 40;
constexpr uint32_t STAGE_ROWS = 32, SLICE_CHUNKS = 16, MOST_SLOTS = 8;
// Shared memory for slices of x, of which there are always two or all.
constexpr uint32_t X_ROOM = 64 << 10;

// N rows of x by 32 * PARTS weight rows; SPLIT blocks a tile.
template <int N, int PARTS_, int SPLIT_>
struct Tile {
    static constexpr uint32_t COLS = N, PARTS = PARTS_, SPLIT = SPLIT_, ROWS = STAGE_ROWS * PARTS;
    // Whether those that multiply take registers from those that copy, which are a whole warpgroup then.
    static constexpr bool DEALS = N > 8;
    static constexpr uint32_t THREADS = (MATH_WARPS + COPY_WARPS + (DEALS ? 2 : 1)) * WARP;
    // Pieces of 16 x 8 sums, of which a lane has two columns, and most such columns that a warp adds up.
    static constexpr uint32_t PIECES = ROWS / 16 * N / 8, OWN = (2 * PIECES + MATH_WARPS - 1) / MATH_WARPS;
    // Warps that have sums of a piece: of one team where each has its own half of the tile.
    static constexpr uint32_t SHARERS = MATH_WARPS / PARTS, SUM_BYTES = SHARERS * PIECES * 512;
    // What comes from the other block: of two tiles, half of the sums.
    static constexpr uint32_t SENT_BYTES = SPLIT == 1 ? 0 : PIECES * 256;
    static constexpr uint32_t X_BYTES = N * SLICE_CHUNKS * F16_LINE,
                              SLOTS = X_ROOM / X_BYTES < 2 ? 2 : X_ROOM / X_BYTES;
};

// How a launch is divided, and shared addresses.
template <class T>
struct Schedule {
    const TensorArgs &args;
    uint32_t batch, tiles, slices, first_slice, end_slice, stage_bytes, stages, slots;
    uint32_t sums, sent, x, ring, full, empty, x_full, x_empty, ready, taken, met;

    __device__ __forceinline__ Schedule(const TensorArgs &args, const Shape &shape, uint32_t shared, uint32_t barriers)
        : args(args) {
        batch = args.on_outputs ? shape.outputs : shape.rows;
        tiles = 0;
        uint32_t most = 0;
        for (uint32_t i = 0; i < args.count; i++) {
            tiles += args.segments[i].matrix.rows / T::ROWS;
            most = max(most, stride_of(args.segments[i].matrix.dtype));
        }
        slices = (args.cols + 1023) / 1024;
        first_slice = slices * rank() / T::SPLIT, end_slice = slices * (rank() + 1) / T::SPLIT;
        slots = min(T::SLOTS, (slices + T::SPLIT - 1) / T::SPLIT);
        stage_bytes = STAGE_ROWS * most;
        uint32_t bytes;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
        sums = shared, sent = sums + T::SUM_BYTES, x = sent + 2 * T::SENT_BYTES, ring = x + slots * T::X_BYTES;
        stages = min(MOST_STAGES, (bytes - (ring - shared)) / stage_bytes) / TEAMS * TEAMS;
        full = barriers, empty = full + 8 * MOST_STAGES, x_full = empty + 8 * MOST_STAGES,
        x_empty = x_full + 8 * MOST_SLOTS;
        ready = x_empty + 8 * MOST_SLOTS, taken = ready + 8, met = taken + 8;
    }
    __device__ __forceinline__ static uint32_t rank() { return T::SPLIT == 1 ? 0 : blockIdx.x % T::SPLIT; }
    __device__ __forceinline__ static uint32_t begin() { return blockIdx.x / T::SPLIT; }
    __device__ __forceinline__ static uint32_t step() { return gridDim.x / T::SPLIT; }
    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    // Whether all slices of x that the block needs stay where they are.
    __device__ __forceinline__ bool is_resident() const { return slots >= end_slice - first_slice; }
    __device__ __forceinline__ uint32_t groups_of(uint32_t slice) const {
        return min((uint32_t)SLICE_GROUPS, args.cols / 32 - slice * SLICE_GROUPS);
    }
    __device__ __forceinline__ TileCoord coord_of(uint32_t tile) const { return coord_of_tile<T::ROWS>(args, tile); }
};

// The scales of a group from its own two bytes and those of its block, without conversions of whole numbers.
template <int TYPE>
__device__ __forceinline__ F16Scales quick_scales(uint32_t own, uint32_t block) {
    F16Scales out;
    if constexpr (TYPE == Q8_0) {
        out.scale[0] = out.scale[1] = __half2half2(__ushort_as_half((unsigned short)own));
    } else if constexpr (TYPE == Q6_K) {
        const __half2 whole =
            __hsub2(as_halves(pick_bytes(own ^ 0x8080, HALF_1024, 0x5150)), __float2half2_rn(1024.0f + 128.0f));
        const __half2 both = __hmul2(whole, as_halves(pick_bytes(block, 0, 0x1010)));
        out.scale[0] = __low2half2(both), out.scale[1] = __high2half2(both);
    } else {
        const __half2 whole = __hsub2(as_halves(pick_bytes(own, HALF_1024, 0x5150)), __float2half2_rn(1024.0f));
        const __half2 both = __hmul2(whole, as_halves(block)), scale = __low2half2(both);
        out.scale[0] = scale, out.scale[1] = TYPE == Q4_K ? __hmul2(scale, __float2half2_rn(0.0625f)) : scale;
        out.shift = __hfma2(scale, __float2half2_rn((float)CENTER<TYPE>), __hneg2(__high2half2(both)));
    }
    return out;
}

template <int TYPE>
__device__ __forceinline__ F16Group<TYPE> group_of(const Raw<TYPE> &raw) {
    F16Group<TYPE> g;
#pragma unroll
    for (uint32_t i = 0; i < sizeof(g.words) / 4; i++) g.words[i] = raw.words[i];
#pragma unroll
    for (uint32_t i = 0; i < sizeof(g.high) / 4; i++) g.high[i] = raw.high[i];
    g.scales = quick_scales<TYPE>(raw.own, raw.block);
    return g;
}
