// Tiles of products on tensor cores whose warps divide the outputs, the stages that they take their operands in, and
// the ring of stages.
//
// A stage has four neighbouring groups, a quad, of one slice of a tile's weight rows, and of its rows of x.
#pragma once
#include "gemm/segments.cuh"
#include "ptx/mbarrier.cuh"

// Outputs of a unit of work: what a warp makes 8-bit blocks of.
constexpr uint32_t UNIT = 32;
// Groups of a stage, and stages that a slice makes.
constexpr uint32_t QUAD = 4, QUADS = SLICE_GROUPS / QUAD;
constexpr uint32_t MOST_STAGES = 6;

__host__ __device__ constexpr uint32_t joins_of(uint32_t passes) {
    return passes > 4 ? 3 : passes > 2 ? 2 : passes > 1 ? 1 : 0;
}

// Threads of a block that copy.
constexpr uint32_t COPIERS = 128;

// BM weight rows, BN rows of x; WM times WN warps that multiply; SPLIT blocks a tile.
template <int BM, int BN, int WM, int WN, int SPLIT_>
struct Tile {
    static constexpr uint32_t ROWS = BM, COLS = BN, THREADS = WARP * WM * WN, SPLIT = SPLIT_,
                              ALL_THREADS = THREADS + COPIERS;
    static constexpr uint32_t WARP_COLS = WN;
    // With as many threads as others, copiers leave them most registers.
    static constexpr uint32_t COPIER_REGISTERS = THREADS == COPIERS ? 40 : 56,
                              REGISTERS = THREADS == COPIERS ? 216 : 224;
    static constexpr int MT = BM / WM / 16, NT = BN / WN / 8, OUTPUTS = MT * NT * 4;
    static constexpr uint32_t PASSES = QUADS / SPLIT, LEVELS = joins_of(PASSES);
    // Distances of the columns' codes and factors, and of sums: they keep banks apart.
    static constexpr uint32_t CODE_STRIDE = 32 * QUAD + 16, COLUMN_STRIDE = 8 * BN + 32, ROW_STRIDE = 8 * BM,
                              SUM_STRIDE = BM + 4;
    static constexpr uint32_t WAIT_BYTES = LEVELS * OUTPUTS * THREADS * 4, END_BYTES = BN * SUM_STRIDE * 4;
    // And a barrier.
    static constexpr uint32_t SUM_BYTES = (WAIT_BYTES > END_BYTES ? WAIT_BYTES : END_BYTES) + 16;
    // A stage: two barriers, the columns' codes, the factors of rows and of columns, the rows' codes.
    static constexpr uint32_t ROW_FACTORS_AT = 16 + BN * CODE_STRIDE,
                              COLUMN_FACTORS_AT = ROW_FACTORS_AT + QUAD * ROW_STRIDE;
    static constexpr uint32_t ROWS_AT = COLUMN_FACTORS_AT + QUAD * COLUMN_STRIDE;
};

// Bytes of a row's codes of a stage: an odd number of 16, which keeps banks apart.
__host__ __device__ constexpr uint32_t row_stride(uint32_t dtype) {
    return ((bytes_of_gemm_group(dtype).codes + bytes_of_gemm_group(dtype).high) * QUAD / 16 | 1) * 16;
}

// A stage: where it stands in the work of the block.
struct Place {
    uint32_t work, pass, slice;
};

// The first weight row and row of x of a tile.
struct TileCoord {
    uint32_t segment, row, column;
};

// How the depth of a tile is divided into stages.
template <class T_, class Args>
struct Slices {
    using T = T_;
    const Args &args;

    // All but the arguments themselves is found anew where it is needed: registers are few.
    __device__ __forceinline__ static uint32_t rank() { return T::SPLIT == 1 ? 0 : blockIdx.x % T::SPLIT; }
    __device__ __forceinline__ uint32_t quad_of(const Place &at) const { return rank() * T::PASSES + at.pass; }
    __device__ __forceinline__ uint32_t groups() const { return args.cols / 32; }
    // Whether some stage has less than four groups.
    __device__ __forceinline__ bool is_ragged() const {
        return args.cols % (32 * QUAD) != 0 || args.cols < 32 * SLICE_GROUPS;
    }
    __device__ __forceinline__ uint32_t groups_of_slice(const Place &at) const {
        return min((uint32_t)SLICE_GROUPS, groups() - at.slice * SLICE_GROUPS);
    }
    // Groups of a stage: none where the quad has none.
    __device__ __forceinline__ uint32_t groups_of(const Place &at) const {
        const uint32_t all = groups_of_slice(at), first = quad_of(at) * QUAD;
        return first < all ? min(QUAD, all - first) : 0;
    }
    // Stages of a pass.
    __device__ __forceinline__ uint32_t slices_of(const Place &at) const {
        const uint32_t slices = groups() / SLICE_GROUPS, rest = groups() % SLICE_GROUPS;
        return max(1u, slices + (rest > quad_of(at) * QUAD));
    }
};

// The weight rows of a tile, in two halves: `lower` and `upper` have rows up to `last`.
struct TileRows {
    const uint8_t *lower, *upper;
    uint32_t last, row_bytes;
};

// How a launch is divided into tiles.
template <class T>
struct Tiles : Slices<T, TensorArgs> {
    using Slices<T, TensorArgs>::args;
    const Shape &shape;

    __device__ __forceinline__ uint32_t batch() const { return args.on_outputs ? shape.outputs : shape.rows; }
    __device__ __forceinline__ uint32_t across() const { return (batch() + T::COLS - 1) / T::COLS; }

    __device__ __forceinline__ uint32_t works() const {
        uint32_t units = is_gated() ? (args.segments[0].matrix.rows + T::ROWS / 2 - 1) / (T::ROWS / 2) : 0;
        for (uint32_t i = 0; !is_gated() && i < args.count; i++) units += units_of(i);
        return units * across();
    }

    __device__ __forceinline__ uint32_t stage_bytes() const {
        uint32_t most = 0;
        for (uint32_t i = 0; i < args.count; i++) most = max(most, T::ROWS * row_stride(args.segments[i].matrix.dtype));
        return T::ROWS_AT + most;
    }

    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    __device__ __forceinline__ uint32_t units_of(uint32_t segment) const {
        return (args.segments[segment].matrix.rows + T::ROWS - 1) / T::ROWS;
    }

    // A gated tile has as many rows of the second segment.
    __device__ __forceinline__ TileCoord coord_of(uint32_t work) const {
        uint32_t unit = work / across();
        TileCoord corner{0, 0, (work - unit * across()) * T::COLS};
        if (is_gated()) {
            corner.row = unit * (T::ROWS / 2);
            return corner;
        }
        while (corner.segment + 1 < args.count && unit >= units_of(corner.segment)) unit -= units_of(corner.segment++);
        corner.row = unit * T::ROWS;
        return corner;
    }

    // Calls `f` with the weight type of a tile.
    template <typename F>
    __device__ __forceinline__ void by_type(const TileCoord &at, const F &f) const {
        by_gemm_type(args.segments[at.segment].matrix.dtype, f);
    }
    __device__ __forceinline__ TileRows rows_of(const TileCoord &at) const {
        const Matrix &m = args.segments[at.segment].matrix;
        return TileRows{m.data, is_gated() ? args.segments[1].matrix.data : m.data, m.rows - 1, m.row_bytes};
    }
    // The row of x of a column of the tile; columns past the last are the last.
    __device__ __forceinline__ uint32_t x_row(const TileCoord &at, uint32_t column) const {
        return min(at.column + column, batch() - 1);
    }
};

// Until the phase with this parity has ended; chips of before 9.0 ask again and again.
__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
    uint32_t is_over;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
#endif
            : "=r"(is_over)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!is_over);
}

// The ring of stages, as copiers and the other warps each walk around it. A stage is full when its copies have come and
// its factors stand, and empty when all warps have read it.
struct Ring {
    uint32_t first, end, each;
    uint32_t stage, parity = 0;

    __device__ __forceinline__ Ring(uint32_t first, uint32_t each, uint32_t bytes)
        : first(first), end(first + min(MOST_STAGES, bytes / each) * each), each(each), stage(first) {}
    __device__ __forceinline__ uint32_t full() const { return stage; }
    __device__ __forceinline__ uint32_t empty() const { return stage + 8; }
    __device__ __forceinline__ void advance() {
        stage += each;
        if (stage == end) stage = first, parity ^= 1;
    }
};
