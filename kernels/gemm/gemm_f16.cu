// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, in 16-bit floats with sums in f32
// (gemm/f16_tiles.cuh), for prompts and batches whose rows need not have the bits that each would have alone. The first
// stages' weights are on their way before a block waits for its producers.
#include "gemm/f16_tiles.cuh"

// Only code for compute capability 9.0 alone has these instructions. Without kernels of these names the host chooses
// none.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where a tile begins.
struct TileCoord {
    uint32_t segment, row, column;
};

// Copies x, of which a stage has rows side by side, by one lane.
template <class Plan>
struct BulkColumns {
    using T = typename Plan::T;
    const Plan &plan;
    uint32_t column;

    __device__ __forceinline__ BulkColumns(const Plan &plan) : plan(plan) {}
    __device__ __forceinline__ void find(const TileCoord &at) { column = at.column; }
    __device__ __forceinline__ void start(uint32_t to, uint32_t chunk, uint32_t barrier) const {
        if (elect_lane()) {
            announce(barrier, T::X_BYTES);
            const int8_t *from = plan.args.x.q + f16_line(column, 2 * chunk, plan.args.cols / F16_COLUMNS);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                        to + i * T::COLS * F16_LINE),
                    "l"(__cvta_generic_to_global(from + (size_t)i * F16_ROWS * F16_LINE)), "r"(T::COLS * F16_LINE),
                    "r"(barrier)
                    : "memory");
            }
        }
        __syncwarp();
    }
};

// How a launch is divided.
template <class Shape_>
struct Schedule {
    using T = Shape_;
    using Columns = BulkColumns<Schedule>;
    static constexpr bool GATHERS = false;
    const TensorArgs &args;
    uint32_t cols, batch, across, all, first_chunk, end_chunk, stage_bytes, stages;

    __device__ __forceinline__ Schedule(const TensorArgs &args, const Shape &shape) : args(args), cols(args.cols) {
        batch = args.on_outputs ? shape.outputs : shape.rows;
        across = (batch + T::COLS - 1) / T::COLS;
        uint32_t units = 0;
        for (uint32_t i = 0; i < args.count; i++) units += units_of(i);
        if (is_gated()) units = (args.segments[0].matrix.rows + T::ROWS / 2 - 1) / (T::ROWS / 2);
        all = units * across;
        const uint32_t chunks = args.cols / 128;
        first_chunk = chunks * rank() / T::SPLIT, end_chunk = chunks * (rank() + 1) / T::SPLIT;
        stage_bytes = stage_bytes_of<T>(args.f16_row_bytes), stages = stages_of<T>(stage_bytes);
    }
    __device__ __forceinline__ static uint32_t rank() { return T::SPLIT == 1 ? 0 : blockIdx.x % T::SPLIT; }
    __device__ __forceinline__ uint32_t works() const { return all; }
    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    __device__ __forceinline__ uint32_t units_of(uint32_t segment) const {
        return (args.segments[segment].matrix.rows + T::ROWS - 1) / T::ROWS;
    }
    // Tiles side by side have the same weights. Gated ones have eight rows of the first matrix and eight of the second
    // in turn.
    __device__ __forceinline__ TileCoord coord_of(uint32_t work) const {
        uint32_t unit = work / across;
        TileCoord corner{0, 0, (work - unit * across) * T::COLS};
        while (!is_gated() && corner.segment + 1 < args.count && unit >= units_of(corner.segment))
            unit -= units_of(corner.segment++);
        corner.row = unit * (is_gated() ? T::ROWS / 2 : T::ROWS);
        return corner;
    }
    template <typename F>
    __device__ __forceinline__ void by_type(const TileCoord &at, const F &f) const {
        by_gemm_type(args.segments[at.segment].matrix.dtype, f);
    }
    __device__ __forceinline__ TileWeights weights_of(const TileCoord &at) const {
        const Matrix &m = args.segments[at.segment].matrix;
        const size_t first = (size_t)at.row * m.row_bytes;
        return TileWeights(m.data + first, args.segments[1].matrix.data + first, m, is_gated());
    }
};

// What sums of a column are multiplied by.
__device__ __forceinline__ float factor_of(const TensorArgs &args, uint32_t column, uint32_t batch) {
    return args.x.factors != nullptr && column < batch ? args.x.factors[column] * F16_SCALE : F16_SCALE;
}

// Outputs of one segment, COUNT at a time, so that all that they are added to is on its way at once. `place` tells row
// and column of one, with a row past the last for none, and `sum` what it is.
template <uint32_t COUNT, typename Place, typename Sum>
__device__ __forceinline__ void put_outputs(const Segment &segment, Place place, Sum sum) {
    const uint32_t rows = segment.matrix.rows;
    float before[COUNT];
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint2 at = place(i);
        before[i] = segment.adds && at.x < rows ? segment.out[(size_t)at.y * rows + at.x] : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint2 at = place(i);
        if (at.x >= rows) continue;
        float v = sum(i);
        if (segment.bias != nullptr) v = __fadd_rn(v, segment.bias[at.x]);
        segment.out[(size_t)at.y * rows + at.x] = segment.adds ? __fmaf_rn(segment.adds, v, before[i]) : v;
    }
}

// Sums straight from registers.
template <class T>
__device__ __forceinline__ void put_sums(
    const Schedule<T> &plan, const TileCoord &at, const float (&sum)[T::COLS / 2]) {
    constexpr uint32_t ROUND = 4;
    const uint32_t lane = threadIdx.x % WARP, row = at.row + threadIdx.x / WARP * 16 + lane / 4,
                   first = at.column + 2 * (lane % 4);
    const TensorArgs &args = plan.args;
#pragma unroll
    for (uint32_t i = 0; i < T::COLS / 8; i += ROUND) {
        float factors[ROUND][2];
#pragma unroll
        for (uint32_t k = 0; k < 2 * ROUND; k++)
            factors[k / 2][k % 2] = factor_of(args, first + 8 * (i + k / 2) + k % 2, plan.batch);
        const auto place = [&](uint32_t k) {
            const uint32_t column = first + 8 * (i + k / 4) + k % 2;
            return make_uint2(column < plan.batch ? row + k / 2 % 2 * 8 : ~0u, column);
        };
        put_outputs<4 * ROUND>(args.segments[at.segment], place,
            [&](uint32_t k) { return __fmul_rn(sum[4 * i + k], factors[k / 4][k % 2]); });
    }
}

// The same of gated units.
template <class T>
__device__ __forceinline__ void put_gated(
    const Schedule<T> &plan, const TileCoord &at, const float (&sum)[T::COLS / 2]) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, unit = at.row + threadIdx.x / WARP * 8 + g,
                   first = at.column + 2 * (lane % 4);
    const TensorArgs &args = plan.args;
    const bool upper = g & 2;
#pragma unroll
    for (uint32_t i = 0; i < T::COLS / 8; i++) {
        const uint32_t column = first + 8 * i;
        float v[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) v[k] = __fmul_rn(sum[4 * i + k], factor_of(args, column + k % 2, plan.batch));
        const float units[2] = {gated(args.unit, v[0], v[2]), gated(args.unit, v[1], v[3])};
        // A thread and the one of the unit two further have two neighbours in memory each.
        const float other = __shfl_xor_sync(ALL_LANES, upper ? units[0] : units[1], 8);
        const uint32_t pair = upper ? f16_pair(other, units[1]) : f16_pair(units[0], other);
        if (column + upper >= plan.batch) continue;
        const size_t to = f16_quad_at(column + upper, unit & ~3u, args.segments[0].matrix.rows);
        *reinterpret_cast<uint32_t *>(args.gated.q + (unit & 1 ? to ^ 16 : to)) = pair;
    }
}

// Sums of teams and of the blocks of a cluster, in order; the latter divide the columns of the tile.
template <class T>
__device__ __forceinline__ void put_parts(
    const Schedule<T> &plan, const TileCoord &at, const float (&sum)[T::COLS / 2], float *shared, uint32_t barrier) {
    const uint32_t lane = threadIdx.x % WARP, group = threadIdx.x / GROUP_THREADS,
                   slab = group % T::HALVES * 4 + threadIdx.x / WARP % 4;
    float *own = shared + (group / T::HALVES * T::COLS + lane % 4 * 2) * T::SUM_STRIDE + slab * 16 + lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < T::COLS / 8; i++) {
        float *to = own + 8 * i * T::SUM_STRIDE;
        to[0] = sum[4 * i], to[T::SUM_STRIDE] = sum[4 * i + 1], to[8] = sum[4 * i + 2],
        to[T::SUM_STRIDE + 8] = sum[4 * i + 3];
    }
    sync_cluster<T>(barrier, 0);
    const TensorArgs &args = plan.args;
    const auto total = [&](uint32_t column, uint32_t row) {
        float v = 0.0f;
#pragma unroll
        for (uint32_t block = 0; block < T::SPLIT; block++) {
#pragma unroll
            for (uint32_t team = 0; team < T::TEAMS; team++) {
                const float *from = shared + (team * T::COLS + column) * T::SUM_STRIDE + row;
                v = __fadd_rn(v, T::SPLIT == 1 ? *from : load_from(block, shared_address(from)));
            }
        }
        return __fmul_rn(v, factor_of(args, at.column + column, plan.batch));
    };
    constexpr uint32_t COLS = T::COLS / T::SPLIT;
    const uint32_t first = plan.rank() * COLS;
    if (!plan.is_gated()) {
        constexpr uint32_t STEP = T::THREADS / T::ROWS, TIMES = COLS / STEP, ROUND = TIMES < 8 ? TIMES : 8;
        const uint32_t row = threadIdx.x % T::ROWS, own = first + threadIdx.x / T::ROWS;
#pragma unroll 1
        for (uint32_t i = 0; i < TIMES; i += ROUND) {
            const auto place = [&](uint32_t k) {
                const uint32_t column = at.column + own + (i + k) * STEP;
                return make_uint2(column < plan.batch ? at.row + row : ~0u, column);
            };
            put_outputs<ROUND>(
                args.segments[at.segment], place, [&](uint32_t k) { return total(own + (i + k) * STEP, row); });
        }
    } else {
        // A thread has four neighbouring units.
        constexpr uint32_t QUADS = T::ROWS / 8;
        const uint32_t quad = threadIdx.x % QUADS, unit = at.row + 4 * quad, row = quad / 2 * 16 + quad % 2 * 4;
        for (uint32_t column = first + threadIdx.x / QUADS; column < first + COLS; column += T::THREADS / QUADS) {
            if (at.column + column >= plan.batch) continue;
            float v[4];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                v[k] = gated(args.unit, total(column, row + k), total(column, row + k + 8));
            put_f16_quad(args.gated, at.column + column, unit, args.segments[0].matrix.rows,
                make_float4(v[0], v[1], v[2], v[3]));
        }
    }
    // Until all have read.
    sync_cluster<T>(barrier, 1);
}

template <class T>
__device__ __forceinline__ void gemm_f16(const TensorArgs &args, const Shape &shape) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[RING_BARRIERS];
    const Schedule<T> plan(args, shape);
    run_tiles(plan, shared_address(shared), shared_address(barriers),
        [&](const TileCoord &at, const float (&sum)[T::COLS / 2], uint32_t cluster) {
            if constexpr (T::PARTS == 1) {
                if (plan.is_gated()) put_gated(plan, at, sum);
                else put_sums(plan, at, sum);
            } else {
                put_parts(plan, at, sum, reinterpret_cast<float *>(shared), cluster);
            }
        });
}

#define GEMM_F16(family, file, name, N, ROWS, SPLIT)                                                                 \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(Tile<N, ROWS, SPLIT>::ALL_THREADS, 1) \
        name(const __grid_constant__ TensorArgs args, Shape shape) {                                                 \
        gemm_f16<Tile<N, ROWS, SPLIT>>(args, shape);                                                                 \
    }
#include "kernels.def"

#endif
