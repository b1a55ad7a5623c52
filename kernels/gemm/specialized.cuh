// Tiles of products with quantized matrices on tensor cores, by warps that divide the outputs while others bring the
// operands.
//
// A block computes a tile of weight rows times rows of x, its warps parts of that tile. It walks over the 32 group
// lanes of slices in quads: a pass takes the four groups of a quad of every slice, in order, into four sums an output,
// which are added in pairs at its end. Sums of quads wait in shared memory for their neighbours, those for theirs, and
// so on. That is the order of `gemm_dp4a.cu` and `gemv_b1.cu`, where a lane stands for what is a group of every slice
// here, so all give the same bits. Where tiles are few, the blocks of a cluster divide the quads of one and add their
// sums at the end, in the same order.
//
// Codes come to shared memory through a ring; scales pass through registers and stand there as floats.
#pragma once
#include "gemm/producer.cuh"
#include "ptx/cluster.cuh"

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

// Adds the products of one stage.
template <int TYPE, class T>
__device__ __forceinline__ void add_stage(const Operands &in, uint32_t groups, Sums<T> &sum) {
    if (groups == QUAD) {
#pragma unroll
        for (int j = 0; j < (int)QUAD; j++) add_group<TYPE, T>(in, j, sum[j]);
    } else if (has_short_slices(TYPE)) {
        // Types with blocks of 256 columns have all four or none.
        if (groups > 0) add_group<TYPE, T>(in, 0, sum[0]);
        if (groups > 1) add_group<TYPE, T>(in, 1, sum[1]);
        if (groups > 2) add_group<TYPE, T>(in, 2, sum[2]);
    }
}

// All stages of a tile; leaves its sums in shared memory.
template <int TYPE, class Tiles>
__device__ __forceinline__ void sum_tile(const Tiles &tiles, Ring &ring, float *sums) {
    using T = typename Tiles::T;
    const Operands operands = operands_of<T>(row_stride(TYPE));
#pragma unroll 1
    for (Place at{}; at.pass < T::PASSES; at.pass++) {
        Sums<T> sum = {};
        uint32_t groups = tiles.groups_of(at);
        for (uint32_t left = tiles.slices_of(at); left > 0; left--) {
            if (has_short_slices(TYPE) && tiles.is_ragged())
                at.slice = tiles.slices_of(at) - left, groups = tiles.groups_of(at);
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

// What the warps do that multiply; `put_tile` writes the outputs of a tile.
template <class Tiles>
__device__ __forceinline__ void multiply_all(const Tiles &tiles, Ring ring, float *sums) {
    using T = typename Tiles::T;
    launch_then_await();
    for (uint32_t work = blockIdx.x / T::SPLIT; work < tiles.works(); work += gridDim.x / T::SPLIT) {
        tiles.by_type(tiles.coord_of(work), [&](auto type) { sum_tile<decltype(type)::value>(tiles, ring, sums); });
        wait_for_cluster<T>(ring.first - 16, 0);
        put_tile(tiles, tiles.coord_of(work), sums);
        wait_for_cluster<T>(ring.first - 16, 1);
    }
}

template <class Tiles>
__device__ __forceinline__ void multiply(const Tiles &tiles) {
    using T = typename Tiles::T;
    extern __shared__ __align__(128) uint8_t shared[];
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
        multiply_all(tiles, ring, reinterpret_cast<float *>(shared));
    }
}
