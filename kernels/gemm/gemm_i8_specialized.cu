// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, for many rows of x and quantized matrices, on
// tensor cores.
//
// A block computes a tile of weight rows times rows of x, its warps parts of that tile. It walks over the 32 group
// lanes of slices in quads: a pass takes the four groups of a quad of every slice, in order, into four sums an output,
// which are added in pairs at its end. Sums of quads wait in shared memory for their neighbours, those for theirs, and
// so on. That is the order of `gemm_dp4a.cu` and `gemv_b1.cu`, where a lane stands for what is a group of every slice
// here, so all give the same bits. Where tiles are few, the blocks of a cluster divide the quads of one and add their
// sums at the end, in the same order.
//
// Codes come to shared memory through a ring; scales pass through registers and stand there as floats. The first
// weights start before the block waits for its producers.
#include "gemm/producer.cuh"
#include "ptx/cluster.cuh"
#include "quant/activation.cuh"

__device__ __forceinline__ float4 load_shared(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

template <class T>
using Sums = float[QUAD][T::MT][T::NT][4];

// Where a lane's operands stand in a stage: codes of rows and of columns, factors of rows and of columns.
struct Operands {
    uint32_t rows, columns, row_factors, factors;

    __device__ __forceinline__ Operands in(uint32_t stage) const {
        return Operands{stage + rows, stage + columns, stage + row_factors, stage + factors};
    }
};

template <class T>
__device__ __forceinline__ Operands operands_of(uint32_t stride) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t row = warp / T::WARP_COLS * 16 * T::MT, column = warp % T::WARP_COLS * 8 * T::NT;
    // Lanes of the upper half load the next eight columns.
    const uint32_t columns = 16 + (column + lane % 8 + lane / 16 * 8) * T::CODE_STRIDE + lane / 8 % 2 * 16;
    return Operands{T::ROWS_AT + (row + lane) * stride, columns, T::ROW_FACTORS_AT + 8 * row + 16 * g,
        T::COLUMN_FACTORS_AT + 8 * column + 16 * t};
}

// Adds the products of one group of a stage.
template <int TYPE, class T>
__device__ __forceinline__ void add_group(const Operands &in, int j, float (&sum)[T::MT][T::NT][4]) {
    constexpr uint32_t STRIDE = row_stride(TYPE);
    // Keeps the loads of later groups from taking registers where these are few.
    if constexpr (T::COLS < 32) __syncwarp();
    uint32_t a[T::MT / 2][2][4];
    RowFactors rows[T::MT][2];
#pragma unroll
    for (int m = 0; m < T::MT / 2; m++) load_rows<TYPE, STRIDE, QUAD>(a[m], in.rows + 32 * m * STRIDE, j);
#pragma unroll
    for (int m = 0; m < T::MT; m++) {
        const float4 f = load_shared(in.row_factors + j * T::ROW_STRIDE + 128 * m);
        const float2 each[2] = {make_float2(f.x, f.y), make_float2(f.z, f.w)};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            RowFactors &own = rows[m][i];
            own.scale[0] = each[i].x, own.scale[1] = own.min = each[i].y;
            own.base[0] = -INTEGER_BASE * each[i].x, own.base[1] = -INTEGER_BASE * each[i].y;
        }
    }
    uint32_t b[4];
#pragma unroll
    for (int n = 0; n < T::NT; n++) {
        if (T::COLS < 32 && n > 0) __syncwarp();
        if (n % 2 == 0) load_matrices(b, in.columns + n * 8 * T::CODE_STRIDE + j * 32);
        const uint32_t (&own)[2] = *reinterpret_cast<const uint32_t (*)[2]>(b + n % 2 * 2);
        const float4 f = load_shared(in.factors + j * T::COLUMN_STRIDE + 64 * n);
        const ColumnFactors columns[2] = {{f.x, f.y}, {f.z, f.w}};
#pragma unroll
        for (int m = 0; m < T::MT; m++) add_tile<TYPE>(sum[m][n], a[m / 2][m % 2], rows[m], own, columns);
    }
}

// Waits for the warps that multiply.
template <class T>
__device__ __forceinline__ void wait_for_warps() {
    asm volatile("barrier.sync.aligned 1, %0;" ::"n"(T::THREADS) : "memory");
}

__device__ __forceinline__ float4 add_quads(const float4 &a, const float4 &b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// Adds a quad's four sums, and what waits for them; leaves the result for its neighbour, or after the last pass in
// shared memory for all.
template <class T>
__device__ __forceinline__ void join_pass(uint32_t pass, const Sums<T> &sum, float *shared) {
    float4 *waiting = reinterpret_cast<float4 *>(shared) + threadIdx.x;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const bool is_last = pass + 1 == T::PASSES;
    float4 all[T::OUTPUTS / 4];
#pragma unroll
    for (int i = 0; i < T::OUTPUTS / 4; i++) {
        const int m = i / T::NT, n = i % T::NT;
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = __fadd_rn(__fadd_rn(sum[0][m][n][k], sum[1][m][n][k]), __fadd_rn(sum[2][m][n][k], sum[3][m][n][k]));
        all[i] = make_float4(v[0], v[1], v[2], v[3]);
    }
    const auto place = [&](int level, int i) -> float4 & { return waiting[(level * T::OUTPUTS / 4 + i) * T::THREADS]; };
#pragma unroll
    for (int level = 0; level < (int)T::LEVELS; level++) {
        const uint32_t mask = (2u << level) - 1;
        if ((pass & mask) == mask) {
#pragma unroll
            for (int i = 0; i < T::OUTPUTS / 4; i++) all[i] = add_quads(place(level, i), all[i]);
        } else if ((pass & (mask >> 1)) == mask >> 1) {
#pragma unroll
            for (int i = 0; i < T::OUTPUTS / 4; i++) place(level, i) = all[i];
        }
    }
    if (!is_last) return;
    wait_for_warps<T>();
    float *to = shared + (warp % T::WARP_COLS * 8 * T::NT + lane % 4 * 2) * T::SUM_STRIDE +
        warp / T::WARP_COLS * 16 * T::MT + lane / 4;
#pragma unroll
    for (int i = 0; i < T::OUTPUTS / 4; i++) {
        const int m = i / T::NT, n = i % T::NT;
        float *own = to + 8 * n * T::SUM_STRIDE + 16 * m;
        own[0] = all[i].x, own[T::SUM_STRIDE] = all[i].y, own[8] = all[i].z, own[T::SUM_STRIDE + 8] = all[i].w;
    }
}

// Waits for the warps that multiply, in all blocks of the cluster; what each wrote to its shared memory is visible
// then.
template <class T>
__device__ __forceinline__ void wait_for_cluster(uint32_t barrier, uint32_t parity) {
    wait_for_warps<T>();
#if __CUDA_ARCH__ >= 900
    if constexpr (T::SPLIT > 1) meet_cluster<T::SPLIT>(barrier, parity);
#endif
}

// The sum of an output over the blocks of the cluster, from its place in their shared memory.
template <class T>
__device__ __forceinline__ float total(const float *own) {
    if constexpr (T::SPLIT == 1) {
        return *own;
    } else {
#if __CUDA_ARCH__ >= 900
        float v[T::SPLIT];
#pragma unroll
        for (uint32_t i = 0; i < T::SPLIT; i++) v[i] = load_from(i, shared_address(own));
#pragma unroll
        for (uint32_t step = 1; step < T::SPLIT; step *= 2) {
#pragma unroll
            for (uint32_t i = 0; i < T::SPLIT; i += 2 * step) v[i] = __fadd_rn(v[i], v[i + step]);
        }
        return v[0];
#else
        return 0.0f;
#endif
    }
}

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

// Adds the products of one stage.
template <int TYPE, class T>
__device__ __forceinline__ void add_stage(const Operands &in, uint32_t groups, Sums<T> &sum) {
    if (groups == QUAD) {
#pragma unroll
        for (int j = 0; j < (int)QUAD; j++) add_group<TYPE, T>(in, j, sum[j]);
    } else if (TYPE == Q8_0) {
        // Types with blocks of 256 columns have all four or none.
        if (groups > 0) add_group<TYPE, T>(in, 0, sum[0]);
        if (groups > 1) add_group<TYPE, T>(in, 1, sum[1]);
        if (groups > 2) add_group<TYPE, T>(in, 2, sum[2]);
    }
}

// All stages of a tile; leaves its sums in shared memory.
template <int TYPE, class T>
__device__ __forceinline__ void sum_tile(const Tiles<T> &tiles, Ring &ring, float *sums) {
    const Operands operands = operands_of<T>(row_stride(TYPE));
#pragma unroll 1
    for (Place at{}; at.pass < T::PASSES; at.pass++) {
        Sums<T> sum = {};
        // Only rows of Q8_0 have slices that end within a quad.
        uint32_t groups = tiles.groups_of(at);
        for (uint32_t left = tiles.slices_of(at); left > 0; left--) {
            if (TYPE == Q8_0 && tiles.is_ragged()) at.slice = tiles.slices_of(at) - left, groups = tiles.groups_of(at);
            wait_for(ring.full(), ring.parity);
            add_stage<TYPE, T>(operands.in(ring.stage), groups, sum);
            __syncwarp();
            if (threadIdx.x % WARP == 0) arrive(ring.empty());
            ring.advance();
        }
        join_pass<T>(at.pass, sum, sums);
        at.slice = 0;
    }
}

// What the warps do that multiply.
template <class T>
__device__ __forceinline__ void multiply_all(const TensorArgs &args, const Tiles<T> &tiles, Ring ring, float *sums) {
    launch_then_await();
    for (uint32_t work = blockIdx.x / T::SPLIT; work < tiles.works(); work += gridDim.x / T::SPLIT) {
        switch (args.segments[tiles.coord_of(work).segment].matrix.dtype) {
            case Q8_0: sum_tile<Q8_0>(tiles, ring, sums); break;
            case Q4_K: sum_tile<Q4_K>(tiles, ring, sums); break;
            case Q5_K: sum_tile<Q5_K>(tiles, ring, sums); break;
            default: sum_tile<Q6_K>(tiles, ring, sums); break;
        }
        wait_for_cluster<T>(ring.first - 16, 0);
        put_tile(tiles, tiles.coord_of(work), sums);
        wait_for_cluster<T>(ring.first - 16, 1);
    }
}

template <class T>
__device__ __forceinline__ void multiply(const TensorArgs &args, const Shape &shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    const Tiles<T> tiles{args, shape};
    uint32_t dynamic_bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic_bytes));
    const Ring ring(shared_address(shared) + T::SUM_BYTES, tiles.stage_bytes(), dynamic_bytes - T::SUM_BYTES);
    const uint32_t own = ring.first + threadIdx.x * ring.each;
    if (threadIdx.x < MOST_STAGES && own < ring.end)
        make_barrier(own, COPIERS + COPIERS / WARP), make_barrier(own + 8, T::THREADS / WARP);
    if (threadIdx.x == 0) make_barrier(ring.first - 16, T::SPLIT);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if constexpr (T::SPLIT > 1)
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
    if (threadIdx.x >= T::THREADS) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::COPIER_REGISTERS));
#endif
        copy_all(tiles, ring);
    } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::REGISTERS));
#endif
        multiply_all(args, tiles, ring, reinterpret_cast<float *>(shared));
    }
}

// Only code for compute capability 9.0 alone may divide registers between warps as the widest tiles need it. Others
// walk over more and smaller tiles, which is right for any number of blocks and needs less shared memory.
template <class T>
__device__ __forceinline__ void multiply_specialized(const TensorArgs &args, const Shape &shape) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply<T>(args, shape);
#else
    using Small = Tile<64, 16, 2, 1, 1>;
    if (threadIdx.x < Small::ALL_THREADS) multiply<Small>(args, shape);
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
