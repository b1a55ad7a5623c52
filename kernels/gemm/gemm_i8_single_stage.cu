// out = x * matrix^T (+ bias) (+ out) for up to eight rows of x and quantized matrices whose tiles have an SM each, on
// tensor cores.
//
// A block has one tile, all of whose bytes are on their way before it waits for its producers: without a ring, and with
// room beside it for blocks of the kernels before and behind.
#include "gemm/i8_tile.cuh"

// Blocks of an SM that registers leave room for: others run beside this one.
constexpr uint32_t RESIDENT = 3;

// The host does not choose this kernel where it was compiled for less than compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Distance of weight rows: an odd number of 16 bytes, which keeps banks apart.
__device__ __forceinline__ uint32_t row_stride(const Matrix &m) { return (m.row_bytes / 16 | 1) * 16; }

// Copies the rows of the tile, two by each warp; those behind the matrix are its last one again.
__device__ __forceinline__ void start_weights(const Matrix &m, uint32_t row, uint32_t to, uint32_t barrier) {
    constexpr uint32_t EACH = TILE_ROWS / WARPS;
    const uint32_t first = warp_number() * EACH, from = min(row + first, m.rows - 1);
    copy_rows<EACH>(to + first * row_stride(m), row_stride(m), m.row_bytes, barrier,
        m.data + (size_t)from * m.row_bytes, m.row_bytes, m.rows - 1 - from);
}

// Brings a row of x to shared memory, by a warp.
__device__ __forceinline__ void fetch_row(const TensorArgs &args, const RowsOfX &x, uint32_t column, uint8_t *shared) {
    const uint32_t lane = threadIdx.x % WARP, chunks = args.cols / 16, groups = args.cols / 32;
    const int8_t *q = args.x.q + (size_t)column * args.cols;
    const uint32_t to = shared_address(shared) + column * x.code_stride;
#pragma unroll 4
    for (uint32_t i = lane; i < chunks; i += WARP) copy_16<0>(to + 16 * i, q + 16 * i);
    commit_copies();
    const Meta *meta = args.x.meta + (size_t)column * groups;
    float2 *factors = reinterpret_cast<float2 *>(shared + x.factors + column * x.factor_stride);
#pragma unroll 4
    for (uint32_t i = lane; i < groups; i += WARP) {
        const Meta own = meta[i];
        factors[i] = make_float2(own.scale, (float)(own.sums.x + own.sums.y));
    }
    wait_copies<0>();
}

template <int TYPE>
__device__ __forceinline__ void add_slices(
    const Matrix &m, const RowsOfX &x, const uint8_t *shared, float (&sum)[GROUPS][4]) {
    const uint32_t index = threadIdx.x / WARP * GROUPS, stride = row_stride(m);
    const uint8_t *slice = shared + x.end;
    Columns columns(x, shared, index);
#pragma unroll 1
    for (uint32_t left = m.cols / 32; index < left; left -= min(left, (uint32_t)SLICE_GROUPS)) {
        add_slice<TYPE>(Slice<TYPE>(slice, stride, min((uint32_t)SLICE_GROUPS, left), index), columns, sum);
        slice += m.slice_bytes, columns.advance();
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, RESIDENT)
    gemm_i8_single_stage(const __grid_constant__ TensorArgs args, Shape shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float parts[WARPS * SUMS];
    __shared__ uint64_t weights_there;
    const uint32_t barrier = shared_address(&weights_there);
    const Tile tile = tile_of(args, blockIdx.x);
    const Segment &segment = args.segments[tile.segment];
    const Matrix &m = segment.matrix;
    const RowsOfX x(args, shape);
    if (threadIdx.x == 0) {
        make_barrier(barrier, WARPS);
        publish_barriers();
    }
    __syncthreads();
    start_weights(m, tile.row, shared_address(shared) + x.end, barrier);
    // Of the outputs a thread of half the warps has one.
    const uint32_t row = threadIdx.x % TILE_ROWS, column = threadIdx.x / TILE_ROWS, at = tile.row + row;
    const bool ends = column < x.batch && at < m.rows;
    float *out = segment.out + (size_t)column * m.rows + at;
    const float bias = ends && segment.bias != nullptr ? segment.bias[at] : 0.0f;
    launch_then_await();
    if (warp_number() < x.batch) fetch_row(args, x, warp_number(), shared);
    const float before = ends && segment.adds ? *out : 0.0f;
    const float factor = ends && args.x.factors != nullptr ? args.x.factors[column] : 1.0f;
    __syncthreads();
    wait_phase(barrier, 0);
    float sum[GROUPS][4] = {};
    switch (m.dtype) {
        case Q8_0: add_slices<Q8_0>(m, x, shared, sum); break;
        case Q4_K: add_slices<Q4_K>(m, x, shared, sum); break;
        case Q5_K: add_slices<Q5_K>(m, x, shared, sum); break;
        default: add_slices<Q6_K>(m, x, shared, sum); break;
    }
    put_parts(sum, parts);
    __syncthreads();
    if (!ends) return;
    float v = __fmul_rn(add_parts(parts, row, column), factor);
    if (segment.bias != nullptr) v = __fadd_rn(v, bias);
    *out = segment.adds ? __fmaf_rn(segment.adds, v, before) : v;
}

#else

extern "C" __global__ void gemm_i8_single_stage(const __grid_constant__ TensorArgs, Shape) {}

#endif
