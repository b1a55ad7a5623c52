// The products of `expert_gemm.cu` in 16-bit floats with sums in f32 (gemm/f16_tiles.cuh), for prompts whose rows need
// not have the bits that each would have alone. A tile has pairs of one expert, whose rows of x are gathered.
#include "experts/grouped.cuh"
#include "gemm/f16_tiles.cuh"

// As in gemm_f16.cu: where there are none of these, the host chooses none.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The outputs of a pair that a tile has from `row` on, for the pairs that are listed as `tile`.
struct ExpertCoord {
    uint32_t row;
    ExpertTile tile;
};

// Copies the rows of x of a tile's pairs. Eight lanes copy the parts of a line, which are swapped by the number of the
// row that they come from, and then by that of the column which they go to.
template <class Plan>
struct GatheredColumns {
    static constexpr uint32_t COLS = Plan::T::COLS, PARTS = 8, STEP = WARP / PARTS;
    const Plan &plan;
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t count, lines[COLS / WARP];  // first lines of the rows of columns `lane`, `lane` + 32, and so on

    __device__ __forceinline__ GatheredColumns(const Plan &plan) : plan(plan) {}

    __device__ __forceinline__ void find(const ExpertCoord &at) {
        count = at.tile.count;
        const uint32_t chunks = f16_chunks(plan.cols);
#pragma unroll
        for (uint32_t i = 0; i < COLS / WARP; i++) {
            const uint32_t row = x_row_of(plan.args, plan.pair(at, lane + i * WARP));
            lines[i] = row / F16_ROWS * F16_ROWS * chunks + row % F16_ROWS;
        }
    }

    // Columns that have no pair keep what stands there.
    __device__ __forceinline__ void start(uint32_t to, uint32_t chunk, uint32_t) const {
        const uint32_t part = lane % PARTS, own = lane / PARTS;
        const int8_t *from = plan.args.x.q + part * 16;
#pragma unroll
        for (uint32_t i = 0; i < COLS / WARP; i++) {
#pragma unroll 2
            for (uint32_t column = own; column < WARP; column += STEP) {
                if (i * WARP + column - own >= count) break;
                const uint32_t line = __shfl_sync(ALL_LANES, lines[i], column);
                const uint32_t put = to + (i * WARP + column) * F16_LINE + (part ^ (line ^ column) % PARTS) * 16;
#pragma unroll
                for (uint32_t k = 0; k < 2; k++)
                    copy_16<0>(
                        put + k * COLS * F16_LINE, from + (size_t)(line + (2 * chunk + k) * F16_ROWS) * F16_LINE);
            }
        }
    }
};

// How a launch is divided.
template <class Shape_>
struct ExpertPlan {
    using T = Shape_;
    using Columns = GatheredColumns<ExpertPlan>;
    static constexpr bool GATHERS = true;
    const ExpertGemmArgs &args;
    uint32_t cols, first_chunk, end_chunk, stage_bytes, stages;

    __device__ __forceinline__ ExpertPlan(const ExpertGemmArgs &args)
        : args(args), cols(args.cols), first_chunk(0), end_chunk(f16_chunks(args.cols) / 2) {
        const uint32_t dtype = args.tables[0].matrix.dtype;
        stage_bytes = stage_bytes_of<T>(f16_row_bytes(dtype)), stages = stages_of<T>(stage_bytes);
    }
    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    __device__ __forceinline__ uint32_t unit_rows() const { return is_gated() ? T::ROWS / 2 : T::ROWS; }
    __device__ __forceinline__ uint32_t units() const { return (args.width + unit_rows() - 1) / unit_rows(); }
    __device__ __forceinline__ uint32_t works() const { return *args.count * units(); }
    // Neighbouring works share the pairs. The last tile of a matrix that is no multiple of them has some outputs of the
    // one before.
    __device__ __forceinline__ ExpertCoord coord_of(uint32_t work) const {
        const uint32_t tile = work / units(), unit = work - tile * units();
        return ExpertCoord{min(unit * unit_rows(), args.width - unit_rows()), args.tiles[tile]};
    }
    template <typename F>
    __device__ __forceinline__ void by_type(const ExpertCoord &, const F &f) const {
        by_gemm_type(args.tables[0].matrix.dtype, f);
    }
    __device__ __forceinline__ TileWeights weights_of(const ExpertCoord &at) const {
        const ExpertTable &lower = args.tables[0], &upper = args.tables[is_gated()];
        const auto row = [&](const ExpertTable &table) {
            return table.matrix.data + (size_t)row_of(table, at.tile.expert, at.row) * table.matrix.row_bytes;
        };
        return TileWeights(row(lower), row(upper), lower.matrix, is_gated());
    }
    __device__ __forceinline__ uint32_t pair(const ExpertCoord &at, uint32_t column) const {
        return args.order[at.tile.first + min(column, at.tile.count - 1)];
    }
    // What sums of a pair are multiplied by.
    __device__ __forceinline__ float factor_of(uint32_t pair) const {
        return args.x.factors != nullptr ? args.x.factors[x_row_of(args, pair)] * F16_SCALE : F16_SCALE;
    }
};

// Columns of a thread that it puts out at a time.
constexpr uint32_t ROUND = 8;

// Calls `put` with each of a thread's pairs, its factor, and whose sums these are: of the first row 4i and 4i + 1, of
// that eight rows on 4i + 2 and 4i + 3. A round of pairs is looked up at once.
template <class T, typename F>
__device__ __forceinline__ void each_column(const ExpertPlan<T> &plan, const ExpertCoord &at, const F &put) {
    const uint32_t first = 2 * (threadIdx.x % 4);
#pragma unroll
    for (uint32_t round = 0; round < T::COLS / 4; round += ROUND) {
        if (round * 4 >= at.tile.count) break;
        uint32_t pairs[ROUND];
        float factors[ROUND];
#pragma unroll
        for (uint32_t i = 0; i < ROUND; i++) pairs[i] = plan.pair(at, first + (round + i) / 2 * 8 + i % 2);
#pragma unroll
        for (uint32_t i = 0; i < ROUND; i++) factors[i] = plan.factor_of(pairs[i]);
#pragma unroll
        for (uint32_t i = 0; i < ROUND; i += 2) put((round + i) / 2, first + (round + i) * 4, pairs + i, factors + i);
    }
}

template <class T>
__device__ __forceinline__ void put_sums(
    const ExpertPlan<T> &plan, const ExpertCoord &at, const float (&sum)[T::COLS / 2]) {
    const ExpertGemmArgs &args = plan.args;
    const uint32_t row = at.row + threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
    const Finish finish[2] = {Finish(args.tables[0], at.tile.expert, args.width, row),
        Finish(args.tables[0], at.tile.expert, args.width, row + 8)};
    each_column(plan, at, [&](uint32_t i, uint32_t column, const uint32_t *pairs, const float *factors) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const size_t place = (size_t)pairs[k % 2] * args.width + row + k / 2 * 8;
            if (column + k % 2 < at.tile.count)
                args.out[place] = finish[k / 2](__fmul_rn(sum[4 * i + k], factors[k % 2]), place);
        }
    });
}

// Gated units, in the same form as x.
template <class T>
__device__ __forceinline__ void put_gated(
    const ExpertPlan<T> &plan, const ExpertCoord &at, const float (&sum)[T::COLS / 2]) {
    const ExpertGemmArgs &args = plan.args;
    const uint32_t g = threadIdx.x % WARP / 4, unit = at.row + threadIdx.x / WARP * 8 + g;
    const Finish finish[2] = {Finish(args.tables[0], at.tile.expert, args.width, unit),
        Finish(args.tables[1], at.tile.expert, args.width, unit)};
    const bool upper = g & 2;
    each_column(plan, at, [&](uint32_t i, uint32_t column, const uint32_t *pairs, const float *factors) {
        float units[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const size_t place = (size_t)pairs[k] * args.width + unit;
            const float gate = finish[0](__fmul_rn(sum[4 * i + k], factors[k]), place),
                        up = finish[1](__fmul_rn(sum[4 * i + 2 + k], factors[k]), place);
            units[k] = args.unit(gate, up);
        }
        // A thread and the one of the unit two further have two neighbours in memory each.
        const float other = __shfl_xor_sync(ALL_LANES, upper ? units[0] : units[1], 8);
        const uint32_t both = upper ? f16_pair(other, units[1]) : f16_pair(units[0], other);
        if (column + upper >= at.tile.count) return;
        const size_t to = f16_quad_at(upper ? pairs[1] : pairs[0], unit & ~3u, args.width);
        *reinterpret_cast<uint32_t *>(args.gated.q + (unit & 1 ? to ^ 16 : to)) = both;
    });
}

template <class T>
__device__ __forceinline__ void multiply_experts(const ExpertGemmArgs &args) {
    static_assert(T::PARTS == 1, "a thread has whole sums");
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[RING_BARRIERS];
    const ExpertPlan<T> plan(args);
    run_tiles(plan, shared_address(shared), shared_address(barriers),
        [&](const ExpertCoord &at, const float (&sum)[T::COLS / 2], uint32_t) {
            if (plan.is_gated()) put_gated(plan, at, sum);
            else put_sums(plan, at, sum);
        });
}

#define EXPERT_GEMM_F16(family, file, name, N, ROWS, RESIDENT)                                      \
    extern "C" __global__ void __launch_bounds__(Tile<N, ROWS, 1, RESIDENT>::ALL_THREADS, RESIDENT) \
        name(const __grid_constant__ ExpertGemmArgs args, Shape) {                                  \
        multiply_experts<Tile<N, ROWS, 1, RESIDENT>>(args);                                         \
    }
#include "kernels.def"

#endif
