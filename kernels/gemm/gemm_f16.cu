// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, in 16-bit floats with sums in f32, for
// prompts and batches whose rows need not have the bits that each would have alone.
//
// Warpgroups multiply 64 weight rows, which they unpack to registers, by the columns of x that stand in shared memory.
// A block has a tile of 64 or 128 weight rows; where x has few rows, teams of warpgroups divide the columns of it, and
// the blocks of a cluster those of the tile. A warpgroup that multiplies nothing brings stages of 128 columns through a
// ring: weights as they are, the first ones from before the block waits for its producers, and x in the form of
// f16_layout.cuh.
#include "gemm/segments.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"
#include "quant/activation.cuh"
#include "quant/f16_weights.cuh"

// Only code for compute capability 9.0 alone has these instructions. Without kernels of these names the host chooses
// none.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr uint32_t GROUP_THREADS = 128, HALF_ROWS = 64;
constexpr uint32_t MOST_STAGES = 16;

// N rows of x by BM weight rows, SPLIT blocks a tile. Few rows of x leave registers for four warpgroups.
template <int N, int BM, int SPLIT_>
struct Tile {
    static constexpr uint32_t COLS = N, ROWS = BM, SPLIT = SPLIT_, GROUPS = N > 64 ? 2 : 4, HALVES = BM / HALF_ROWS,
                              TEAMS = GROUPS / HALVES;
    static constexpr uint32_t THREADS = GROUPS * GROUP_THREADS, ALL_THREADS = THREADS + GROUP_THREADS;
    static constexpr uint32_t REGISTERS = N > 64 ? 224 : 104, COPIER_REGISTERS = N > 64 ? 56 : 64;
    // Warps that copy. A place in the ring is always filled by one of them and read by one team, so that none takes a
    // round of it for another.
    static constexpr uint32_t COPIERS = N > 128 ? 1 : N > 64 ? 2 : 4, STAGE_STEP = COPIERS > TEAMS ? COPIERS : TEAMS;
    // Where registers allow it, one half of a stage is unpacked while the other is multiplied.
    static constexpr uint32_t BUFFERS = N == 128 ? 2 : 1, PARTS = TEAMS * SPLIT;
    static constexpr uint32_t SUM_STRIDE = BM + 4;
    // Sums of each team, where there are several; a stage begins on a multiple of 1024.
    static constexpr uint32_t SUM_BYTES = PARTS == 1 ? 0 : (TEAMS * N * SUM_STRIDE * 4 + 1023) / 1024 * 1024;
    static constexpr uint32_t X_BYTES = 2 * N * F16_LINE;
};

// Where a tile begins.
struct TileCoord {
    uint32_t segment, row, column;
};

struct PipelineState {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void skip(uint32_t count, uint32_t stages) {
        for (stage += count; stage >= stages; stage -= stages) parity ^= 1;
    }
};

// Shared addresses of the ring and its barriers, and that of the cluster.
struct Ring {
    uint32_t stages, full, empty, cluster;
};

// Where a row's codes of a group stand among those of four: rows side by side keep banks apart.
__device__ __forceinline__ uint32_t piece_at(uint32_t row, uint32_t group) { return (group ^ row / 2 % 4) * 16; }

// How a launch is divided.
template <class T>
struct Schedule {
    const TensorArgs &args;
    uint32_t batch, across, works, first_chunk, end_chunk, stage_bytes, stages;

    __device__ __forceinline__ Schedule(const TensorArgs &args, const Shape &shape) : args(args) {
        batch = args.on_outputs ? shape.outputs : shape.rows;
        across = (batch + T::COLS - 1) / T::COLS;
        uint32_t units = 0;
        for (uint32_t i = 0; i < args.count; i++) units += units_of(i);
        if (is_gated()) units = (args.segments[0].matrix.rows + T::ROWS / 2 - 1) / (T::ROWS / 2);
        works = units * across;
        const uint32_t chunks = args.cols / 128;
        first_chunk = chunks * rank() / T::SPLIT, end_chunk = chunks * (rank() + 1) / T::SPLIT;
        stage_bytes = T::X_BYTES + (T::ROWS * args.f16_row_bytes + 1023) / 1024 * 1024;
        uint32_t bytes;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
        stages = min(MOST_STAGES, (bytes - T::SUM_BYTES) / stage_bytes) / T::STAGE_STEP * T::STAGE_STEP;
    }
    __device__ __forceinline__ static uint32_t rank() { return T::SPLIT == 1 ? 0 : blockIdx.x % T::SPLIT; }
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
};

// A warp that fills every COPIERS-th stage of all tiles. Four lanes copy the codes of a row, eight rows at a time, and
// each lane what else some rows have.
template <class T>
struct Copier {
    const Schedule<T> &plan;
    const Ring &ring;
    const uint32_t lane = threadIdx.x % WARP, warp = (threadIdx.x - T::THREADS) / WARP;
    // The lane's first rows, of even and odd eights, and the distance of two of either kind.
    const uint8_t *even, *odd;
    uint32_t distance, column;

    __device__ __forceinline__ Copier(const Schedule<T> &plan, const Ring &ring) : plan(plan), ring(ring) {}

    __device__ __forceinline__ void find(const TileCoord &at) {
        const bool is_gated = plan.is_gated();
        const Matrix &m = plan.args.segments[at.segment].matrix;
        const size_t first = (size_t)(at.row + lane % 8) * m.row_bytes;
        even = m.data + first, odd = is_gated ? plan.args.segments[1].matrix.data + first : even + 8 * m.row_bytes;
        distance = (is_gated ? 8 : 16) * m.row_bytes, column = at.column;
    }

    // Starts the copies of the weights of a stage.
    template <int TYPE>
    __device__ __forceinline__ void start_weights(uint32_t stage, uint32_t chunk, uint32_t slice_bytes) const {
        constexpr uint32_t PLANE = T::ROWS * F16_CODES, HIGH = f16_high(TYPE), EIGHTS = T::ROWS / 8;
        const uint32_t slice = chunk / 8, quad = chunk % 8, part = lane / 8;
        const uint32_t groups = min((uint32_t)SLICE_GROUPS, plan.args.cols / 32 - slice * SLICE_GROUPS),
                       at = slice * slice_bytes;
        const uint32_t to = ring.stages + stage * plan.stage_bytes + T::X_BYTES,
                       codes = to + lane % 8 * F16_CODES + piece_at(lane, part);
        const uint32_t from = at + F16_CODES * quad + part * 16;
        const uint8_t *rows[2] = {even + from, odd + from};
        // Not unrolled as a whole, which would take a register a row.
#pragma unroll 4
        for (uint32_t i = 0; i < EIGHTS; i += 2) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t put = codes + 8 * (i + k) * F16_CODES;
                copy_16<0>(put, rows[k]);
                if constexpr (TYPE == Q8_0) copy_16<0>(put + PLANE, rows[k] + 16 * groups);
                rows[k] += distance;
            }
        }
        const uint32_t high = at + code_bytes(TYPE) * groups, scales = high + high_bytes(TYPE) * groups;
        const uint32_t to_high = to + f16_planes(TYPE) * PLANE, to_scales = to_high + T::ROWS * HIGH;
#pragma unroll
        for (uint32_t i = 0; i < EIGHTS / 4; i++) {
            const uint32_t own = 32 * i + lane;
            const uint8_t *row = (part % 2 == 0 ? even : odd) + (2 * i + part / 2) * distance;
            if constexpr (HIGH >= 16) copy_16<0>(to_high + own * HIGH, row + high + HIGH * quad);
            if constexpr (HIGH == 32) copy_16<16>(to_high + own * HIGH, row + high + HIGH * quad);
            copy_8(to_scales + own * 8, row + scales + 8 * quad);
            if constexpr (TYPE != Q8_0)
                copy_4(to_scales + T::ROWS * 8 + own * 4,
                    row + scales + 2 * groups + (TYPE == Q6_K ? quad / 4 : quad / 2) * 4);
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ring.full + 8 * stage) : "memory");
    }

    // And of x.
    __device__ __forceinline__ void start_columns(uint32_t stage, uint32_t chunk) const {
        if (elect_lane()) {
            const uint32_t barrier = ring.full + 8 * stage, to = ring.stages + stage * plan.stage_bytes;
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

    __device__ __forceinline__ void run() {
        const uint32_t begin = blockIdx.x / T::SPLIT, step = gridDim.x / T::SPLIT,
                       chunks = plan.end_chunk - plan.first_chunk;
        // Stages whose weights are on their way before the block waits for its producers.
        const uint32_t early = begin < plan.works ? min(plan.stages, chunks) : 0;
        if (begin < plan.works) {
            const TileCoord corner = plan.coord_of(begin);
            find(corner);
            const Matrix &m = plan.args.segments[corner.segment].matrix;
            by_gemm_type(m.dtype, [&](auto type) {
#pragma unroll 1
                for (uint32_t i = warp; i < early; i += T::COPIERS)
                    start_weights<decltype(type)::value>(i, plan.first_chunk + i, m.slice_bytes);
            });
        }
        await_dependencies();
        PipelineState turn;
        turn.skip(warp, plan.stages);
        // Stages of the block before the tile.
        uint32_t before = 0, next = warp;
        for (uint32_t work = begin; work < plan.works; work += step, before += chunks) {
            const TileCoord corner = plan.coord_of(work);
            if (work != begin) find(corner);
            const Matrix &m = plan.args.segments[corner.segment].matrix;
            by_gemm_type(m.dtype, [&](auto type) {
#pragma unroll 1
                for (; next < before + chunks; next += T::COPIERS) {
                    const uint32_t chunk = plan.first_chunk + next - before;
                    if (next >= early) {
                        wait_phase(ring.empty + 8 * turn.stage, turn.parity ^ 1);
                        start_weights<decltype(type)::value>(turn.stage, chunk, m.slice_bytes);
                    }
                    start_columns(turn.stage, chunk);
                    turn.skip(T::COPIERS, plan.stages);
                }
            });
        }
    }
};

// The products of a tile that the warpgroup has.
template <int TYPE, class T>
__device__ __forceinline__ void sum_tile(
    const Schedule<T> &plan, const Ring &ring, PipelineState &turn, float (&sum)[T::COLS / 2]) {
    constexpr uint32_t PLANE = T::ROWS * F16_CODES, HIGH = f16_high(TYPE),
                       SCALES = T::X_BYTES + f16_planes(TYPE) * PLANE + T::ROWS * HIGH;
    const uint32_t group = threadIdx.x / GROUP_THREADS, team = group / T::HALVES, lane = threadIdx.x % WARP,
                   t = lane % 4;
    const uint32_t row = (group % T::HALVES * 4 + threadIdx.x / WARP % 4) * 16 + lane / 4;
    const F16Rows rows{T::X_BYTES + row * F16_CODES + piece_at(row, t),
        T::X_BYTES + f16_planes(TYPE) * PLANE + row * HIGH + t * high_bytes(TYPE), SCALES + row * 8 + t * 2,
        SCALES + T::ROWS * 8 + row * 4};
    const bool tells = threadIdx.x % GROUP_THREADS == 0;
    const auto start = [&](const uint32_t (&a)[4][4], uint32_t x) {
        begin_products();
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) multiply_add<T::COLS>(sum, a[s], operand_at(x + 32 * s));
        commit_products();
    };
    const auto release = [&](uint32_t stage) {
        if (tells) arrive(ring.empty + 8 * stage);
    };
    uint32_t a[T::BUFFERS][4][4], before = MOST_STAGES;
    // Teams take stages in turn.
    uint32_t left = plan.end_chunk - plan.first_chunk, chunk = plan.first_chunk + team;
    turn.skip(min(team, left), plan.stages), left -= min(team, left);
#pragma unroll 1
    while (left > 0) {
        wait_phase(ring.full + 8 * turn.stage, turn.parity);
        const uint32_t at = ring.stages + turn.stage * plan.stage_bytes, skew = TYPE == Q6_K ? chunk / 2 % 2 * 16 : 0;
        const F16Rows own{at + rows.codes, at + rows.high, at + rows.scales, at + rows.blocks};
        F16Group<TYPE> first, second;
        first.template load<0, PLANE>(own, skew), second.template load<8, PLANE>(own, skew);
        unpack_steps<0>(first, second, a[0]);
        start(a[0], at);
        wait_products<T::BUFFERS - 1>();
        if (T::BUFFERS > 1 && before < MOST_STAGES) release(before);
        unpack_steps<1>(first, second, a[T::BUFFERS - 1]);
        start(a[T::BUFFERS - 1], at + T::COLS * F16_LINE);
        wait_products<T::BUFFERS - 1>();
        if (T::BUFFERS == 1) release(turn.stage);
        before = turn.stage;
        const uint32_t step = min(T::TEAMS, left);
        turn.skip(step, plan.stages), left -= step, chunk += T::TEAMS;
    }
    wait_products<0>();
    if (T::BUFFERS > 1 && before < MOST_STAGES) release(before);
}

// Threads that multiply.
template <class T>
__device__ __forceinline__ void sync_groups() {
    asm volatile("barrier.sync 1, %0;" ::"n"(T::THREADS) : "memory");
}

// Waits for the threads that multiply, in all blocks of the cluster; what each wrote to its shared memory is visible
// then.
template <class T>
__device__ __forceinline__ void sync_cluster(uint32_t barrier, uint32_t parity) {
    sync_groups<T>();
    if constexpr (T::SPLIT > 1) meet_cluster<T::SPLIT>(barrier, parity);
}

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
__device__ __forceinline__ void make_barriers(const Ring &ring) {
    if (threadIdx.x == 0) make_barrier(ring.cluster, T::SPLIT);
    // A stage is read by one team.
    if (threadIdx.x < MOST_STAGES) {
        make_barrier(ring.full + 8 * threadIdx.x, WARP + 1), make_barrier(ring.empty + 8 * threadIdx.x, T::HALVES);
        publish_barriers();
    }
    __syncthreads();
    if constexpr (T::SPLIT > 1)
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <class T>
__device__ __forceinline__ void gemm_f16(const TensorArgs &args, const Shape &shape) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[2 * MOST_STAGES + 1];
    const Schedule<T> plan(args, shape);
    Ring ring;
    ring.stages = shared_address(shared) + T::SUM_BYTES, ring.full = shared_address(barriers),
    ring.empty = ring.full + 8 * MOST_STAGES;
    ring.cluster = ring.empty + 8 * MOST_STAGES;
    make_barriers<T>(ring);
    launch_dependents();
    if (threadIdx.x >= T::THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::COPIER_REGISTERS));
        if (threadIdx.x < T::THREADS + T::COPIERS * WARP) Copier<T>(plan, ring).run();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::REGISTERS));
    await_dependencies();
    PipelineState turn;
#pragma unroll 1
    for (uint32_t work = blockIdx.x / T::SPLIT; work < plan.works; work += gridDim.x / T::SPLIT) {
        const TileCoord at = plan.coord_of(work);
        float sum[T::COLS / 2] = {};
        by_gemm_type(args.segments[at.segment].matrix.dtype,
            [&](auto type) { sum_tile<decltype(type)::value>(plan, ring, turn, sum); });
        if constexpr (T::PARTS == 1) {
            if (plan.is_gated()) put_gated(plan, at, sum);
            else put_sums(plan, at, sum);
        } else {
            put_parts(plan, at, sum, reinterpret_cast<float *>(shared), ring.cluster);
        }
    }
}

#define GEMM_F16(family, file, name, N, ROWS, SPLIT)                                                                 \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(Tile<N, ROWS, SPLIT>::ALL_THREADS, 1) \
        name(const __grid_constant__ TensorArgs args, Shape shape) {                                                 \
        gemm_f16<Tile<N, ROWS, SPLIT>>(args, shape);                                                                 \
    }
#include "kernels.def"

#endif
