// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, for two to four rows of x and quantized
// matrices, on integer matrix instructions.
//
// A tile has 16 or 32 weight rows, a gated unit two of the latter. A block has one tile at a time, and no more than
// half of an SM, so that the next kernel's weights come while it multiplies. Stages of a tile's rows and a slice of
// columns come through a ring, the first ones from before the block waits for its producers. A warp multiplies four
// groups of each slice: a lane unpacks a group of two rows, t of the four, and each column of an instruction has one
// row's activations of one group and zeros for the others, so that the lane gets the sums of the group whose scales it
// has. At the end of a tile the sums of the groups are added; then other warps add those of the warps: the order of
// `gemm_dp4a.cu` and `gemv_b1.cu`, where a lane stands for what is a group of every slice here, so all give the same
// bits.
#include "gemm/lane_groups.cuh"
#include "quant/activation.cuh"

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Where warps may give registers to others, there are enough for two blocks of an SM.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool DEALS = true;
#else
constexpr bool DEALS = false;
#endif

// Warps that multiply, those that finish tiles, one that copies weights, one that copies x.
constexpr uint32_t FINISHERS = 2, COPIER = TEAM_WARPS + FINISHERS, FETCHER = COPIER + 1, THREADS = (FETCHER + 1) * WARP;
constexpr uint32_t REGISTERS = 104, OTHER_REGISTERS = 32;
constexpr uint32_t MOST_SLOTS = 8;
// Bytes of a row of x in a slot: codes, which a pad keeps from the banks of the next row's, and factors.
constexpr uint32_t CODE_STRIDE = 1024 + 16, FACTOR_STRIDE = 32 * sizeof(Meta);
// Shared memory for slices of x, of which there are always two or all.
constexpr uint32_t X_ROOM = 24 << 10;

// N rows of x by tiles of 16 * TILES weight rows.
template <int N, int TILES>
struct Tile {
    static constexpr uint32_t COLS = N, MINE = TILES, ROWS = 16 * TILES;
    // Pairs of columns.
    static constexpr uint32_t PAIRS = N / 2;
    // Distance of columns among sums.
    static constexpr uint32_t SUM_STRIDE = 48, SUM_BYTES = TEAM_WARPS * N * SUM_STRIDE * 4;
    // Columns that a warp finishes.
    static constexpr uint32_t OWN = (N + FINISHERS - 1) / FINISHERS;
    static constexpr uint32_t X_BYTES = N * (CODE_STRIDE + FACTOR_STRIDE),
                              SLOTS = X_ROOM / X_BYTES < 2 ? 2 : X_ROOM / X_BYTES;
};

// How a launch is divided, and shared addresses.
template <class T>
struct Schedule {
    const TensorArgs &args;
    uint32_t batch, units, tiles, slices, stage_bytes, stages, slots;  // tiles of a unit
    uint32_t sums, x, ring, full, empty, x_full, x_empty, ready, taken;

    __device__ __forceinline__ Schedule(const TensorArgs &args, const Shape &shape, uint32_t shared, uint32_t barriers)
        : args(args) {
        batch = args.on_outputs ? shape.outputs : shape.rows;
        tiles = is_gated() ? 2 : 1, units = 0;
        uint32_t most = 0;
        for (uint32_t i = 0; i < args.count; i++) {
            units += args.segments[i].matrix.rows / T::ROWS;
            most = max(most, stride_of(args.segments[i].matrix.dtype));
        }
        units /= tiles;
        slices = (args.cols + 1023) / 1024;
        slots = min(slices, min(T::SLOTS, MOST_SLOTS));
        stage_bytes = T::ROWS * most;
        uint32_t bytes;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
        sums = shared, x = sums + T::SUM_BYTES, ring = x + slots * T::X_BYTES;
        stages = min(MOST_STAGES, (bytes - (ring - shared)) / stage_bytes);
        full = barriers, empty = full + 8 * MOST_STAGES, x_full = empty + 8 * MOST_STAGES,
        x_empty = x_full + 8 * MOST_SLOTS;
        ready = x_empty + 8 * MOST_SLOTS, taken = ready + 8;
    }
    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    // Whether all slices of x stay where they are.
    __device__ __forceinline__ bool is_resident() const { return slots >= slices; }
    __device__ __forceinline__ uint32_t groups_of(uint32_t slice) const {
        return min((uint32_t)SLICE_GROUPS, args.cols / 32 - slice * SLICE_GROUPS);
    }
    __device__ __forceinline__ TileCoord coord_of(uint32_t unit, uint32_t tile) const {
        return coord_of_tile<T::ROWS>(args, tiles * unit + tile);
    }
    // Calls `f` with every tile of the block.
    template <typename F>
    __device__ __forceinline__ void each_tile(const F &f) const {
#pragma unroll 1
        for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
#pragma unroll 1
            for (uint32_t tile = 0; tile < tiles; tile++) f(coord_of(unit, tile), tile);
        }
    }
};

// The warp that copies weights.
template <class T>
__device__ __forceinline__ void bring_weights(const Schedule<T> &plan) {
    const TensorArgs &args = plan.args;
    const bool is_gated = plan.is_gated();
    PipelineState turn;
    uint32_t free = plan.stages;
    plan.each_tile([&](const TileCoord &corner, uint32_t) {
        const Matrix &m = args.segments[corner.segment].matrix;
        const uint32_t row_bytes = m.row_bytes, slice_bytes = m.slice_bytes, stride = stride_of(m.dtype);
        const uint8_t *first = m.data + (size_t)corner.row * row_bytes;
        const uint8_t *second = is_gated ? args.segments[1].matrix.data + (first - m.data) : first + 8 * row_bytes;
        const uint32_t step = (is_gated ? 8 : 16) * row_bytes;
#pragma unroll 1
        for (uint32_t slice = 0; slice < plan.slices; slice++) {
            const uint32_t bytes = min(slice_bytes, row_bytes - slice * slice_bytes);
            if (free > 0) free--;
            else wait_phase(plan.empty + 8 * turn.stage, turn.parity ^ 1);
            if (elect_lane()) {
                const uint32_t barrier = plan.full + 8 * turn.stage, to = plan.ring + turn.stage * plan.stage_bytes;
                announce(barrier, T::ROWS * bytes);
#pragma unroll
                for (uint32_t m = 0; m < T::MINE; m++) {
                    const uint8_t *one = first + (size_t)slice * slice_bytes + m * step,
                                  *other = second + (size_t)slice * slice_bytes + m * step;
#pragma unroll
                    for (uint32_t r = 0; r < 8; r++)
                        copy_run(to + (16 * m + r) * stride, one + r * row_bytes, bytes, barrier);
#pragma unroll
                    for (uint32_t r = 0; r < 8; r++)
                        copy_run(to + (16 * m + 8 + r) * stride, other + r * row_bytes, bytes, barrier);
                }
            }
            __syncwarp();
            turn.skip(1, plan.stages);
        }
    });
}

// Copies a slice of a row of x, by one lane.
template <class T>
__device__ __forceinline__ void copy_row(const Schedule<T> &plan, uint32_t slot, uint32_t slice, uint32_t row) {
    const uint32_t cols = plan.args.cols, groups = plan.groups_of(slice), to = plan.x + slot * T::X_BYTES;
    const size_t group = row * (cols / 32) + slice * SLICE_GROUPS;
    announce(plan.x_full + 8 * slot, groups * (32 + sizeof(Meta)));
    copy_written(to + row * CODE_STRIDE, plan.args.x.q + group * 32, groups * 32, plan.x_full + 8 * slot);
    copy_written(to + T::COLS * CODE_STRIDE + row * FACTOR_STRIDE, plan.args.x.meta + group, groups * sizeof(Meta),
        plan.x_full + 8 * slot);
}

// The first slices of x, whose rows the warps that multiply copy in turn.
template <class T>
__device__ __forceinline__ void bring_first_columns(const Schedule<T> &plan) {
    const uint32_t warp = warp_number(), step = TEAM_WARPS / plan.batch, remainder = TEAM_WARPS % plan.batch;
    uint32_t slot = warp / plan.batch, row = warp % plan.batch;
    await_dependencies();
    if (elect_lane()) {
#pragma unroll 1
        while (slot < plan.slots) {
            copy_row(plan, slot, slot, row);
            slot += step, row += remainder;
            if (row >= plan.batch) row -= plan.batch, slot++;
        }
    }
    __syncwarp();
}

// The warp that copies all others, where they do not all have a place.
template <class T>
__device__ __forceinline__ void bring_columns(const Schedule<T> &plan) {
    if (plan.is_resident()) return;
    await_dependencies();
    PipelineState turn;
    uint32_t first = plan.slots;
    plan.each_tile([&](const TileCoord &, uint32_t) {
#pragma unroll 1
        for (uint32_t slice = 0; slice < plan.slices; slice++) {
            if (first > 0) {
                first--;
            } else {
                wait_phase(plan.x_empty + 8 * turn.stage, turn.parity ^ 1);
                if (elect_lane()) {
#pragma unroll 1
                    for (uint32_t i = 0; i < plan.batch; i++) copy_row(plan, turn.stage, slice, i);
                }
                __syncwarp();
            }
            turn.skip(1, plan.slots);
        }
    });
}

// The lane's words of activations: column c of a pair's instructions has row c % 2 of group c / 2, which only one of
// four lanes has words of. The words of all others are 0, and stay so.
template <class T>
struct Columns {
    uint32_t words[T::PAIRS][8] = {};
    uint32_t is_mine, place;

    __device__ __forceinline__ Columns() {
        const uint32_t lane = threadIdx.x % WARP, column = lane / 4;
        is_mine = column / 2 == lane % 4;
        place = column % 2 * CODE_STRIDE + (threadIdx.x / WARP * 4 + column / 2) * 32;
    }

    __device__ __forceinline__ void load(uint32_t slot) {
#pragma unroll
        for (uint32_t pair = 0; pair < T::PAIRS; pair++) {
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t (&w)[8] = words[pair];
                asm volatile(
                    "{\n.reg .pred mine;\nsetp.ne.u32 mine, %4, 0;\n@mine ld.shared.v4.b32 {%0, %1, %2, %3}, [%5];\n}"
                    : "+r"(w[4 * h]), "+r"(w[4 * h + 1]), "+r"(w[4 * h + 2]), "+r"(w[4 * h + 3])
                    : "r"(is_mine), "r"(slot + place + 2 * pair * CODE_STRIDE + 16 * h));
            }
        }
    }
};

// A warp's sums: of each tile of 16 rows and pair of columns, rows g and g + 8 of either column.
template <class T>
using Sums = float[T::MINE][T::PAIRS][4];

// c += the products of eight values of each group.
__device__ __forceinline__ void multiply_add(
    int (&c)[4], const uint32_t (&first)[8], const uint32_t (&second)[8], const uint32_t (&x)[8], int word) {
    multiply_words<false>(c, first, second, x, word, c);
}

// The products of a stage. `factors` is where those of the lane's group of x are.
template <int TYPE, class T>
__device__ __forceinline__ void add_stage(
    Sums<T> &sum, const Columns<T> &columns, const Places &p, uint32_t at, uint32_t factors) {
#pragma unroll
    for (uint32_t m = 0; m < T::MINE; m++) {
        uint32_t first[8], second[8];
        RowFactors rows[2];
        {
            Raw<TYPE> raw[2];
            load_raw(raw[0], p, at + m * 16 * stage_stride(TYPE)),
                load_raw(raw[1], p, at + (m * 16 + 8) * stage_stride(TYPE));
            unpack(raw[0], first), unpack(raw[1], second);
            rows[0] = factors_of(raw[0]), rows[1] = factors_of(raw[1]);
        }
#pragma unroll
        for (uint32_t pair = 0; pair < T::PAIRS; pair++) {
            ColumnFactors columns_of[2];
            int low[4], high[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 meta = load_shared_as<uint2>(factors + (2 * pair + i) * FACTOR_STRIDE);
                columns_of[i].scale = __uint_as_float(meta.x);
                if constexpr (TYPE == Q6_K) {
                    low[i] = low[2 + i] = INTEGER_BITS - 32 * (short)meta.y,
                    high[i] = high[2 + i] = INTEGER_BITS - 32 * ((int)meta.y >> 16);
                } else {
                    low[i] = low[2 + i] = INTEGER_BITS;
                    if constexpr (has_min(TYPE))
                        columns_of[i].sum =
                            __fsub_rn(__int_as_float(__dp2a_lo((int)meta.y, 0x0101, INTEGER_BITS)), INTEGER_BASE);
                }
            }
            const uint32_t (&own)[8] = columns.words[pair];
            multiply_add(low, first, second, own, 0), multiply_add(low, first, second, own, 2);
            if constexpr (has_halves(TYPE)) {
                multiply_add(high, first, second, own, 4), multiply_add(high, first, second, own, 6);
            } else {
                multiply_add(low, first, second, own, 4), multiply_add(low, first, second, own, 6);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[m][pair][i] = add_sums<TYPE>(rows[i / 2], low[i], high[i], columns_of[i % 2], sum[m][pair][i]);
            }
        }
    }
}

// The warp's products of a tile.
template <int TYPE, class T>
__device__ __forceinline__ void sum_tile(
    const Schedule<T> &plan, PipelineState &turn, PipelineState &x_turn, Columns<T> &columns, Sums<T> &sum) {
    const uint32_t warp = warp_number(), factors = T::COLS * CODE_STRIDE + (warp * 4 + threadIdx.x % 4) * sizeof(Meta);
    const bool is_resident = plan.is_resident();
#pragma unroll 1
    for (uint32_t slice = 0; slice < plan.slices; slice++) {
        const uint32_t slot = is_resident ? slice : x_turn.stage, x = plan.x + slot * T::X_BYTES;
        const uint32_t groups = plan.groups_of(slice);
        const bool has_columns = 4 * warp < groups;
        const Places places = places_of<TYPE>(groups);
        wait_phase(plan.x_full + 8 * slot, is_resident ? 0 : x_turn.parity);
        if (has_columns) columns.load(x);
        wait_phase(plan.full + 8 * turn.stage, turn.parity);
        if (has_columns)
            add_stage<TYPE, T>(sum, columns, places, plan.ring + turn.stage * plan.stage_bytes, x + factors);
        __syncwarp();
        if (threadIdx.x % WARP == 0) {
            arrive(plan.empty + 8 * turn.stage);
            if (!is_resident) arrive(plan.x_empty + 8 * slot);
        }
        turn.skip(1, plan.stages);
        if (!is_resident) x_turn.skip(1, plan.slots);
    }
}

// Leaves the warp's sums where those that finish tiles find them, once those of the tile before have been taken.
template <class T>
__device__ __forceinline__ void leave(const Schedule<T> &plan, const Sums<T> &sum, uint32_t count) {
    if (count > 0) wait_phase(plan.taken, (count - 1) % 2);
    const uint32_t t = threadIdx.x % 4, row = t % 2 * 8 + row_of_lane() + (T::MINE == 2 ? t / 2 * 16 : 0);
    const uint32_t to = plan.sums + (warp_number() * T::COLS * T::SUM_STRIDE + row) * 4;
#pragma unroll
    for (uint32_t pair = 0; pair < T::PAIRS; pair++) {
        // Neighbours among the groups first, then pairs of them; a lane ends with one of the rows.
        float v[T::MINE][2];
#pragma unroll
        for (uint32_t m = 0; m < T::MINE; m++) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) v[m][i] = share<1>(sum[m][pair][i], sum[m][pair][2 + i]);
        }
        if constexpr (T::MINE == 2) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                store_shared(to + (2 * pair + i) * T::SUM_STRIDE * 4, share<2>(v[0][i], v[1][i]));
        } else {
            store_shared(to + (2 * pair + t / 2) * T::SUM_STRIDE * 4, share<2>(v[0][0], v[0][1]));
        }
    }
    __syncwarp();
    if (threadIdx.x % WARP == 0) arrive(plan.ready);
}

// The sum of all warps, of a row of the tile.
template <class T>
__device__ __forceinline__ float add_up(const Schedule<T> &plan, uint32_t column, uint32_t row) {
    float v[TEAM_WARPS];
    const uint32_t from = plan.sums + (column * T::SUM_STRIDE + row) * 4;
#pragma unroll
    for (uint32_t w = 0; w < TEAM_WARPS; w++)
        v[w] = __uint_as_float(load_shared_as<uint32_t>(from + w * T::COLS * T::SUM_STRIDE * 4));
    return __fadd_rn(add_four(v[0], v[1], v[2], v[3]), add_four(v[4], v[5], v[6], v[7]));
}

// A warp that finishes tiles: a lane has a row, or a gated unit, of some columns.
template <class T>
__device__ __forceinline__ void finish_tiles(const Schedule<T> &plan) {
    const TensorArgs &args = plan.args;
    const uint32_t lane = threadIdx.x % WARP, first = warp_number() - TEAM_WARPS;
    await_dependencies();
    float factor[T::OWN], kept[T::OWN];
#pragma unroll
    for (uint32_t i = 0; i < T::OWN; i++) {
        const uint32_t column = first + i * FINISHERS;
        factor[i] = args.x.factors != nullptr && column < plan.batch ? args.x.factors[column] : 1.0f, kept[i] = 0.0f;
    }
    uint32_t count = 0;
    plan.each_tile([&](const TileCoord &at, uint32_t tile) {
        const Segment &segment = args.segments[at.segment];
        const uint32_t rows = segment.matrix.rows, row = at.row + lane;
        const bool is_row = !plan.is_gated() && (T::ROWS == WARP || lane < T::ROWS);
        float before[T::OWN];
#pragma unroll
        for (uint32_t i = 0; i < T::OWN; i++) {
            const uint32_t column = first + i * FINISHERS;
            before[i] = segment.adds && is_row && column < plan.batch ? segment.out[(size_t)column * rows + row] : 0.0f;
        }
        const float bias = segment.bias != nullptr && is_row ? segment.bias[row] : 0.0f;
        wait_phase(plan.ready, count % 2);
#pragma unroll
        for (uint32_t i = 0; i < T::OWN; i++) {
            const uint32_t column = first + i * FINISHERS;
            if (column >= plan.batch) break;
            if (plan.is_gated()) {
                // The first sixteen units of a block, then the others.
                const uint32_t own = lane / 8 % 2 * 16 + lane % 8;
                const float v = gated(args.unit, __fmul_rn(add_up(plan, column, own), factor[i]),
                    __fmul_rn(add_up(plan, column, own + 8), factor[i]));
                if (tile == 0) kept[i] = v;
                else emit_blocks(args.gated, column, at.row - 16 + lane, rows, lane < 16 ? kept[i] : v);
                continue;
            }
            float v = __fmul_rn(add_up(plan, column, T::ROWS == WARP ? lane : lane % T::ROWS), factor[i]);
            if (segment.bias != nullptr) v = __fadd_rn(v, bias);
            if (segment.adds) v = __fmaf_rn(segment.adds, v, before[i]);
            if (is_row) segment.out[(size_t)column * rows + row] = v;
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0) arrive(plan.taken);
        count++;
    });
}

template <class T>
__device__ __forceinline__ void make_barriers(const Schedule<T> &plan) {
    const uint32_t i = threadIdx.x;
    if (i < MOST_STAGES) make_barrier(plan.full + 8 * i, 1), make_barrier(plan.empty + 8 * i, TEAM_WARPS);
    if (i < MOST_SLOTS) make_barrier(plan.x_full + 8 * i, plan.batch), make_barrier(plan.x_empty + 8 * i, TEAM_WARPS);
    if (i == 0) make_barrier(plan.ready, TEAM_WARPS), make_barrier(plan.taken, FINISHERS);
    if (i < WARP) publish_barriers();
    __syncthreads();
}

template <class T>
__device__ __forceinline__ void gemm_i8_small_batch(const TensorArgs &args, const Shape &shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[2 * MOST_STAGES + 2 * MOST_SLOTS + 2];
    const Schedule<T> plan(args, shape, shared_address(shared), shared_address(barriers));
    make_barriers<T>(plan);
    launch_dependents();
    const uint32_t warp = warp_number();
    if (warp >= TEAM_WARPS) {
        if constexpr (DEALS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OTHER_REGISTERS));
        if (warp == COPIER) bring_weights<T>(plan);
        else if (warp == FETCHER) bring_columns<T>(plan);
        else finish_tiles<T>(plan);
        return;
    }
    if constexpr (DEALS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    bring_first_columns(plan);
    Columns<T> columns;
    PipelineState turn, x_turn;
    uint32_t count = 0;
    plan.each_tile([&](const TileCoord &at, uint32_t) {
        Sums<T> sum = {};
        switch (args.segments[at.segment].matrix.dtype) {
            case Q8_0: sum_tile<Q8_0, T>(plan, turn, x_turn, columns, sum); break;
            case Q4_K: sum_tile<Q4_K, T>(plan, turn, x_turn, columns, sum); break;
            case Q5_K: sum_tile<Q5_K, T>(plan, turn, x_turn, columns, sum); break;
            default: sum_tile<Q6_K, T>(plan, turn, x_turn, columns, sum); break;
        }
        leave(plan, sum, count++);
    });
}

#define GEMM_I8_SMALL_BATCH(family, file, name, N, TILES)                \
    extern "C" __global__ void __launch_bounds__(THREADS, DEALS ? 2 : 1) \
        name(const __grid_constant__ TensorArgs args, Shape shape) {     \
        gemm_i8_small_batch<Tile<N, TILES>>(args, shape);                \
    }

#else

#define GEMM_I8_SMALL_BATCH(family, file, name, N, TILES) \
    extern "C" __global__ void name(const __grid_constant__ TensorArgs, Shape) {}

#endif

#include "kernels.def"
