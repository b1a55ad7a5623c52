// out = scale * x * matrix^T + bias, each row by the rows of its own expert, or the gated unit of two such products,
// for many rows, on tensor cores (gemm/specialized.cuh). A tile has rows of the matrix of one expert times pairs of it,
// as `expert_order` lists them; the outputs of a pair go to its own place.
#include "experts/grouped.cuh"
#include "gemm/specialized.cuh"

// The first weight row and pair of a tile.
struct ExpertCoord {
    uint32_t row, column;
    ExpertTile tile;
};

// How a launch is divided into tiles, of T::COLS of the at most WIDTH pairs that are listed as a tile.
template <class T, uint32_t WIDTH>
struct ExpertTiles : Slices<T, ExpertGemmArgs> {
    using Slices<T, ExpertGemmArgs>::args;
    static constexpr uint32_t ACROSS = WIDTH / T::COLS;

    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    __device__ __forceinline__ uint32_t unit_rows() const { return is_gated() ? T::ROWS / 2 : T::ROWS; }
    __device__ __forceinline__ uint32_t units() const { return (args.width + unit_rows() - 1) / unit_rows(); }
    __device__ __forceinline__ uint32_t works() const { return *args.count * units() * ACROSS; }
    __device__ __forceinline__ uint32_t stage_bytes() const {
        return T::ROWS_AT + T::ROWS * row_stride(args.tables[0].matrix.dtype);
    }

    // Neighbouring works share the pairs.
    __device__ __forceinline__ ExpertCoord coord_of(uint32_t work) const {
        const uint32_t tile = work / units(), unit = work - tile * units();
        return ExpertCoord{unit * unit_rows(), tile % ACROSS * T::COLS, args.tiles[tile / ACROSS]};
    }
    template <typename F>
    __device__ __forceinline__ void by_type(const ExpertCoord &, const F &f) const {
        if (args.tables[0].matrix.dtype == MXFP4) f(Known<MXFP4>());
        else by_gemm_type(args.tables[0].matrix.dtype, f);
    }
    __device__ __forceinline__ TileRows rows_of(const ExpertCoord &at) const {
        const ExpertTable &lower = args.tables[0], &upper = args.tables[is_gated()];
        const uint32_t expert = at.tile.expert, row_bytes = lower.matrix.row_bytes;
        return TileRows{lower.matrix.data + (size_t)row_of(lower, expert, 0) * row_bytes,
            upper.matrix.data + (size_t)row_of(upper, expert, 0) * row_bytes, args.width - 1, row_bytes};
    }
    __device__ __forceinline__ uint32_t pair(const ExpertCoord &at, uint32_t column) const {
        return args.order[at.tile.first + min(at.column + column, at.tile.count - 1)];
    }
    __device__ __forceinline__ uint32_t x_row(const ExpertCoord &at, uint32_t column) const {
        return x_row_of(args, pair(at, column));
    }
};

// The outputs of a warp: 32 of the tile's weight rows for some of its columns.
template <class Tiles, bool GATED>
__device__ __forceinline__ void put_outputs(const Tiles &tiles, const ExpertCoord &at, const float *shared) {
    using T = typename Tiles::T;
    constexpr uint32_t UNITS = T::ROWS / UNIT / (GATED ? 2 : 1), STEP = T::THREADS / WARP / UNITS,
                       TIMES = T::COLS / STEP;
    static_assert(STEP > 0 && TIMES <= WARP && T::SPLIT == 1, "a lane for each column");
    const ExpertGemmArgs &args = tiles.args;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, local = warp / UNITS;
    const uint32_t row = at.row + warp % UNITS * UNIT + lane, col = min(row, args.width - 1);
    const float *sums = shared + local * T::SUM_STRIDE + warp % UNITS * UNIT + lane;
    const uint32_t columns = min(T::COLS, at.tile.count - min(at.tile.count, at.column));
    if (row - lane >= args.width) return;
    // One a lane, of its column.
    const uint32_t mine = tiles.pair(at, local + lane % TIMES * STEP);
    const float own = args.x.factors != nullptr ? args.x.factors[x_row_of(args, mine)] : 1.0f;
    const Finish finish[2] = {Finish(args.tables[0], at.tile.expert, args.width, col),
        Finish(args.tables[GATED], at.tile.expert, args.width, col)};
#pragma unroll 8
    for (uint32_t k = 0; k < TIMES; k++) {
        const float factor = __shfl_sync(ALL_LANES, own, k), *sum = sums + k * STEP * T::SUM_STRIDE;
        const uint32_t pair = __shfl_sync(ALL_LANES, mine, k);
        if (local + k * STEP >= columns) break;
        const size_t place = (size_t)pair * args.width + col;
        const float v = finish[0](__fmul_rn(sum[0], factor), place);
        if constexpr (GATED) {
            const float up = finish[1](__fmul_rn(sum[T::ROWS / 2], factor), place);
            emit_blocks(args.gated, pair, row, args.width, args.unit(v, up));
        } else if (row < args.width) {
            args.out[place] = v;
        }
    }
}

template <class T, uint32_t WIDTH>
__device__ __forceinline__ void put_tile(
    const ExpertTiles<T, WIDTH> &tiles, const ExpertCoord &at, const float *shared) {
    if (tiles.is_gated()) put_outputs<ExpertTiles<T, WIDTH>, true>(tiles, at, shared);
    else put_outputs<ExpertTiles<T, WIDTH>, false>(tiles, at, shared);
}

// As for other products, only code for compute capability 9.0 alone divides registers between warps.
template <uint32_t COLS>
__device__ __forceinline__ void multiply_experts(const ExpertGemmArgs &args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply(ExpertTiles<Tile<128, COLS, 4, 1, 1>, COLS>{{args}});
#else
    using Small = Tile<64, 16, 2, 1, 1>;
    if (threadIdx.x < Small::ALL_THREADS) multiply(ExpertTiles<Small, COLS>{{args}});
#endif
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int RESIDENT_BLOCKS = 2;
#else
constexpr int RESIDENT_BLOCKS = 1;
#endif

#define EXPERT_GEMM(family, file, name, COLS)                          \
    extern "C" __global__ void __launch_bounds__(256, RESIDENT_BLOCKS) \
        name(const __grid_constant__ ExpertGemmArgs args, Shape) {     \
        multiply_experts<COLS>(args);                                  \
    }
#include "kernels.def"
