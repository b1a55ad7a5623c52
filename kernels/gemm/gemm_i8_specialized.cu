// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, for many rows of x and quantized matrices, on
// tensor cores (gemm/specialized.cuh).
#include "gemm/specialized.cuh"
#include "quant/activation.cuh"

// Outputs of a warp: a unit of rows for some of the block's columns of a tile. All of them begin together, so that none
// waits for another.
template <class T, bool GATED>
struct Outputs {
    static constexpr uint32_t WARPS = T::THREADS / WARP, COLS = T::COLS / T::SPLIT,
                              UNITS = T::ROWS / UNIT / (GATED ? 2 : 1);
    static constexpr uint32_t STEP = WARPS / UNITS, TIMES = COLS / STEP, AT_ONCE = T::COLS < 32 ? 1 : TIMES;
    static_assert(WARPS % UNITS == 0 && TIMES <= WARP, "a lane for each column");
    const TensorArgs &args;
    const float *own;  // the first sum
    float factors;     // of the columns, one a lane
    uint32_t column, batch, row, rows;

    __device__ __forceinline__ Outputs(const Tiles<T> &tiles, const TileCoord &at, const float *shared)
        : args(tiles.args), batch(tiles.batch()) {
        const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, local = tiles.rank() * COLS + warp / UNITS;
        rows = args.segments[at.segment].matrix.rows, row = at.row + warp % UNITS * UNIT + lane,
        column = at.column + local;
        own = shared + local * T::SUM_STRIDE + warp % UNITS * UNIT + lane;
        const uint32_t mine = column + lane * STEP;
        factors = args.x.factors != nullptr && lane < TIMES && mine < batch ? args.x.factors[mine] : 1.0f;
    }

    __device__ __forceinline__ float sum(uint32_t k, uint32_t shift) const {
        return __fmul_rn(total<T>(own + k * STEP * T::SUM_STRIDE + shift), __shfl_sync(ALL_LANES, factors, k));
    }

    __device__ __forceinline__ void put(const Segment &segment) const {
        const float bias = segment.bias != nullptr && row < rows ? segment.bias[row] : 0.0f;
        float *out = segment.out + (size_t)column * rows + row;
#pragma unroll 1
        for (uint32_t first = 0; first < TIMES; first += AT_ONCE) {
            float before[AT_ONCE], v[AT_ONCE];
            const auto exists = [&](uint32_t k) { return row < rows && column + (first + k) * STEP < batch; };
            const auto place = [&](uint32_t k) { return out + (size_t)(first + k) * STEP * rows; };
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) before[k] = segment.adds && exists(k) ? *place(k) : 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) v[k] = sum(first + k, 0);
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                if (segment.bias != nullptr) v[k] = __fadd_rn(v[k], bias);
                if (segment.adds) v[k] = __fmaf_rn(segment.adds, v[k], before[k]);
                if (exists(k)) *place(k) = v[k];
            }
        }
    }

    // Gated units, which are whole; the bits of `emit_blocks`.
    __device__ __forceinline__ void put_gated() const {
        const uint32_t lane = threadIdx.x % WARP;
        if (row - lane >= rows) return;
#pragma unroll 1
        for (uint32_t first = 0; first < TIMES; first += AT_ONCE) {
            float v[AT_ONCE];
            uint32_t largest[AT_ONCE];
            int q[AT_ONCE], sums[AT_ONCE];
            BlockScale block[AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                v[k] = gated(args.unit, sum(first + k, 0), sum(first + k, T::ROWS / 2));
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) largest[k] = __reduce_max_sync(ALL_LANES, magnitude(v[k]));
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                block[k] = block_scale(largest[k]), q[k] = (int8_t)(code_of(block[k], v[k]) & block[k].bits);
                sums[k] = __reduce_add_sync(ALL_LANES, lane < 16 ? q[k] : q[k] * 65536);
            }
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                const uint32_t at_column = column + (first + k) * STEP;
                if (at_column >= batch) continue;
                const size_t at = (size_t)at_column * rows + row;
                args.gated.x[at] = v[k];
                if (args.gated.q == nullptr) continue;
                args.gated.q[at] = (int8_t)q[k];
                const short lower = (short)sums[k];
                if (lane == 0)
                    args.gated.meta[at / WARP] =
                        Meta{block[k].scale, make_short2(lower, (short)((sums[k] - lower) >> 16))};
            }
        }
    }
};

// Writes the outputs of a tile; the blocks of a cluster divide its columns.
template <class T>
__device__ __forceinline__ void put_tile(const Tiles<T> &tiles, const TileCoord &at, const float *shared) {
    if (tiles.is_gated()) Outputs<T, true>(tiles, at, shared).put_gated();
    else Outputs<T, false>(tiles, at, shared).put(tiles.args.segments[at.segment]);
}

// Only code for compute capability 9.0 alone may divide registers between warps as the widest tiles need it. Others
// walk over more and smaller tiles, which is right for any number of blocks and needs less shared memory.
template <class T>
__device__ __forceinline__ void multiply_specialized(const TensorArgs &args, const Shape &shape) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply(Tiles<T>{{args}, shape});
#else
    using Small = Tile<64, 16, 2, 1, 1>;
    if (threadIdx.x < Small::ALL_THREADS) multiply(Tiles<Small>{{args}, shape});
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTER(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER(BLOCKS)
#endif
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int FEW_BLOCKS = 2;
#else
constexpr int FEW_BLOCKS = 1;
#endif

extern "C" __global__ void __launch_bounds__(384, 1)
    gemm_i8_specialized_64_1(const __grid_constant__ TensorArgs args, Shape shape) {
    multiply_specialized<Tile<128, 64, 4, 2, 1>>(args, shape);
}

extern "C" __global__ void CLUSTER(2) __launch_bounds__(384, 1)
    gemm_i8_specialized_64_2(const __grid_constant__ TensorArgs args, Shape shape) {
    multiply_specialized<Tile<128, 64, 4, 2, 2>>(args, shape);
}

extern "C" __global__ void CLUSTER(8) __launch_bounds__(256, FEW_BLOCKS)
    gemm_i8_specialized_32_8(const __grid_constant__ TensorArgs args, Shape shape) {
    multiply_specialized<Tile<128, 32, 4, 1, 8>>(args, shape);
}
