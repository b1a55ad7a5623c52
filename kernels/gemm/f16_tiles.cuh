// Products with quantized matrices in 16-bit floats on a warpgroup's matrix instructions, of whatever a launch divides
// into tiles.
//
// Warpgroups multiply 64 weight rows, which they unpack to registers, by the columns of x that stand in shared memory.
// A block has a tile of 64 or more weight rows; where x has few rows, teams of warpgroups divide the columns of it, and
// the blocks of a cluster those of the tile. A warpgroup that multiplies nothing brings stages of 128 columns through a
// ring: weights as they are, and x in the form of f16_layout.cuh.
//
// A `Plan` tells of a launch: its tile `T`; `works`, `cols`, `first_chunk` and `end_chunk` of 128 columns,
// `stage_bytes` and `stages`; `coord_of` a work and `by_type` its weights' type; `weights_of` a tile, where they stand.
// Its `Columns` bring x: by bulk copies that count their bytes, or where it `GATHERS` rows by copies of the lanes that
// copy weights, which then begin behind the block's wait; x may then have half a chunk more, whose other columns are
// finite.
#pragma once
#include "gemm/segments.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"
#include "quant/activation.cuh"
#include "quant/f16_weights.cuh"

constexpr uint32_t GROUP_THREADS = 128, HALF_ROWS = 64;
constexpr uint32_t MOST_STAGES = 16;

// N rows of x by BM weight rows, SPLIT blocks a tile. Few rows of x leave registers for four warpgroups, of one block
// of an SM or of two (RESIDENT).
template <int N, int BM, int SPLIT_, int RESIDENT_ = 1>
struct Tile {
    static constexpr uint32_t COLS = N, ROWS = BM, SPLIT = SPLIT_, RESIDENT = RESIDENT_,
                              GROUPS = N > 64 || RESIDENT > 1 ? 2 : 4, HALVES = BM / HALF_ROWS, TEAMS = GROUPS / HALVES;
    static constexpr uint32_t THREADS = GROUPS * GROUP_THREADS, ALL_THREADS = THREADS + GROUP_THREADS;
    static constexpr uint32_t REGISTERS = RESIDENT > 1 ? 96
        : N > 64                                       ? 224
                                                       : 104,
                              COPIER_REGISTERS = RESIDENT > 1 ? 48
        : N > 64                                              ? 56
                                                              : 64;
    // Eights of rows whose copies stand side by side in the code, which takes registers.
    static constexpr int COPIES = RESIDENT > 1 ? 2 : 4;
    // Warps that copy. A place in the ring is always filled by one of them and read by one team, so that none takes a
    // round of it for another. Where two blocks share an SM there is one for each place.
    static constexpr uint32_t COPIERS = N > 128 ? 1
        : N > 64                                ? 2
                                                : 4,
                              STAGE_STEP = RESIDENT > 1 ? 1
        : COPIERS > TEAMS                               ? COPIERS
                                                        : TEAMS;
    // Where registers allow it, one half of a stage is unpacked while the other is multiplied.
    static constexpr uint32_t BUFFERS = N == 128 ? 2 : 1, PARTS = TEAMS * SPLIT;
    static constexpr uint32_t SUM_STRIDE = BM + 4;
    // Sums of each team, where there are several; a stage begins on a multiple of 1024.
    static constexpr uint32_t SUM_BYTES = PARTS == 1 ? 0 : (TEAMS * N * SUM_STRIDE * 4 + 1023) / 1024 * 1024;
    static constexpr uint32_t X_BYTES = 2 * N * F16_LINE;
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

    __device__ __forceinline__ Ring(uint32_t stages, uint32_t barriers)
        : stages(stages), full(barriers), empty(full + 8 * MOST_STAGES), cluster(empty + 8 * MOST_STAGES) {}
};
constexpr uint32_t RING_BARRIERS = 2 * MOST_STAGES + 1;

// Where a row's codes of a group stand among those of four: rows side by side keep banks apart.
__device__ __forceinline__ uint32_t piece_at(uint32_t row, uint32_t group) { return (group ^ row / 2 % 4) * 16; }

// The weights of a tile: its first rows of even and of odd eights, and the distance of two eights of either kind. Gated
// tiles have eight rows of the first matrix and eight of the second in turn.
struct TileWeights {
    const uint8_t *even, *odd;
    uint32_t distance, row_bytes, slice_bytes;

    __device__ __forceinline__ TileWeights(const uint8_t *first, const uint8_t *second, const Matrix &m, bool is_gated)
        : even(first), odd(is_gated ? second : first + 8 * m.row_bytes), distance((is_gated ? 8 : 16) * m.row_bytes),
          row_bytes(m.row_bytes), slice_bytes(m.slice_bytes) {}
};

// Whether a tile may end with half a chunk: other weights than these have whole blocks of 256 columns.
template <class Plan, int TYPE>
__device__ constexpr bool may_have_half() {
    return Plan::GATHERS && TYPE == Q8_0;
}

// One of the `warps` that copy, which take the stages of all tiles in turn. Four lanes copy the codes of a row, eight
// rows at a time, and each lane what else some rows have.
template <class Plan>
struct Copier {
    using T = typename Plan::T;
    const Plan &plan;
    const Ring &ring;
    const uint32_t lane = threadIdx.x % WARP, warp = (threadIdx.x - T::THREADS) / WARP,
                   warps = T::RESIDENT > 1 ? plan.stages : T::COPIERS;
    // The lane's first rows, of even and odd eights, and the distance of two of either kind.
    const uint8_t *even, *odd;
    uint32_t distance;
    typename Plan::Columns columns;

    __device__ __forceinline__ Copier(const Plan &plan, const Ring &ring) : plan(plan), ring(ring), columns(plan) {}

    __device__ __forceinline__ void find(const TileWeights &weights) {
        const size_t own = (size_t)(lane % 8) * weights.row_bytes;
        even = weights.even + own, odd = weights.odd + own, distance = weights.distance;
    }

    // Starts the copies of the weights of a stage.
    template <int TYPE>
    __device__ __forceinline__ void start_weights(uint32_t stage, uint32_t chunk, uint32_t slice_bytes) const {
        constexpr uint32_t PLANE = T::ROWS * F16_CODES, HIGH = f16_high(TYPE), EIGHTS = T::ROWS / 8;
        const uint32_t slice = chunk / 8, quad = chunk % 8, part = lane / 8;
        const uint32_t groups = min((uint32_t)SLICE_GROUPS, plan.cols / 32 - slice * SLICE_GROUPS),
                       at = slice * slice_bytes;
        const uint32_t to = ring.stages + stage * plan.stage_bytes + T::X_BYTES,
                       codes = to + lane % 8 * F16_CODES + piece_at(lane, part);
        // In the place of groups that half a chunk lacks stand those that it has.
        const bool is_there = !may_have_half<Plan, TYPE>() || (4 * chunk + part) * 32 < plan.cols;
        const uint32_t from = at + F16_CODES * quad + (is_there ? part : part - 2) * 16;
        const uint8_t *rows[2] = {even + from, odd + from};
        // Not unrolled as a whole, which would take a register a row.
#pragma unroll(T::COPIES)
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

    __device__ __forceinline__ void run() {
        const uint32_t begin = blockIdx.x / T::SPLIT, step = gridDim.x / T::SPLIT,
                       chunks = plan.end_chunk - plan.first_chunk;
        // Stages whose weights are on their way before the block waits for its producers.
        uint32_t early = 0;
        if constexpr (!Plan::GATHERS) {
            if (begin < plan.works()) {
                early = min(plan.stages, chunks);
                const auto corner = plan.coord_of(begin);
                const TileWeights weights = plan.weights_of(corner);
                find(weights);
                plan.by_type(corner, [&](auto type) {
#pragma unroll 1
                    for (uint32_t i = warp; i < early; i += warps)
                        start_weights<decltype(type)::value>(i, plan.first_chunk + i, weights.slice_bytes);
                });
            }
        }
        await_dependencies();
        PipelineState turn;
        turn.skip(warp, plan.stages);
        // Stages of the block before the tile.
        uint32_t before = 0, next = warp;
        const uint32_t works = plan.works();
        for (uint32_t work = begin; work < works; work += step, before += chunks) {
            const auto corner = plan.coord_of(work);
            const TileWeights weights = plan.weights_of(corner);
            if (Plan::GATHERS || work != begin) find(weights);
            columns.find(corner);
            plan.by_type(corner, [&](auto type) {
#pragma unroll 1
                for (; next < before + chunks; next += warps) {
                    const uint32_t chunk = plan.first_chunk + next - before, full = ring.full + 8 * turn.stage,
                                   to = ring.stages + turn.stage * plan.stage_bytes;
                    if (next >= early) {
                        wait_phase(ring.empty + 8 * turn.stage, turn.parity ^ 1);
                        if constexpr (Plan::GATHERS) columns.start(to, chunk, full);
                        start_weights<decltype(type)::value>(turn.stage, chunk, weights.slice_bytes);
                    }
                    if constexpr (!Plan::GATHERS) columns.start(to, chunk, full);
                    turn.skip(warps, plan.stages);
                }
            });
        }
    }
};

// The products of a tile that the warpgroup has.
template <int TYPE, class Plan, typename T = typename Plan::T>
__device__ __forceinline__ void sum_tile(
    const Plan &plan, const Ring &ring, PipelineState &turn, float (&sum)[T::COLS / 2]) {
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
    // Of half a chunk, threads of the groups that it lacks have zeros.
    const auto cut = [&](uint32_t (&steps)[4][4]) {
        if (t < 2) return;
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) steps[i / 4][i % 4] = 0;
    };
    const auto multiply_stage = [&](uint32_t chunk, auto part) {
        constexpr bool IS_HALF = decltype(part)::value != 0;
        wait_phase(ring.full + 8 * turn.stage, turn.parity);
        // What lanes copied is now seen by matrix instructions too.
        if constexpr (Plan::GATHERS) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        const uint32_t at = ring.stages + turn.stage * plan.stage_bytes, skew = TYPE == Q6_K ? chunk / 2 % 2 * 16 : 0;
        const F16Rows own{at + rows.codes, at + rows.high, at + rows.scales, at + rows.blocks};
        F16Group<TYPE> first, second;
        first.template load<0, PLANE>(own, skew), second.template load<8, PLANE>(own, skew);
        unpack_steps<0>(first, second, a[0]);
        if constexpr (IS_HALF) cut(a[0]);
        start(a[0], at);
        wait_products<T::BUFFERS - 1>();
        if (T::BUFFERS > 1 && before < MOST_STAGES) release(before);
        unpack_steps<1>(first, second, a[T::BUFFERS - 1]);
        if constexpr (IS_HALF) cut(a[T::BUFFERS - 1]);
        start(a[T::BUFFERS - 1], at + T::COLS * F16_LINE);
        wait_products<T::BUFFERS - 1>();
        if (T::BUFFERS == 1) release(turn.stage);
        before = turn.stage;
    };
    // Teams take stages in turn.
    const bool has_half = may_have_half<Plan, TYPE>() && plan.cols % (2 * F16_COLUMNS) != 0;
    uint32_t left = plan.end_chunk - plan.first_chunk - has_half, chunk = plan.first_chunk + team;
    turn.skip(min(team, left), plan.stages), left -= min(team, left);
#pragma unroll 1
    while (left > 0) {
        multiply_stage(chunk, Known<0>());
        const uint32_t step = min(T::TEAMS, left);
        turn.skip(step, plan.stages), left -= step, chunk += T::TEAMS;
    }
    if constexpr (may_have_half<Plan, TYPE>()) {
        if (has_half) {
            multiply_stage(chunk, Known<1>());
            turn.skip(1, plan.stages);
        }
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

// A stage counts the copies of a warp, and the bulk ones of x, if these are.
template <class T, bool GATHERS>
__device__ __forceinline__ void make_barriers(const Ring &ring) {
    if (threadIdx.x == 0) make_barrier(ring.cluster, T::SPLIT);
    // A stage is read by one team.
    if (threadIdx.x < MOST_STAGES) {
        make_barrier(ring.full + 8 * threadIdx.x, WARP + !GATHERS),
            make_barrier(ring.empty + 8 * threadIdx.x, T::HALVES);
        publish_barriers();
    }
    __syncthreads();
    if constexpr (T::SPLIT > 1)
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// What a block does; `put` takes the sums of a tile.
template <class Plan, typename Put>
__device__ __forceinline__ void run_tiles(const Plan &plan, uint32_t shared, uint32_t barriers, const Put &put) {
    using T = typename Plan::T;
    const Ring ring(shared + T::SUM_BYTES, barriers);
    make_barriers<T, Plan::GATHERS>(ring);
    launch_dependents();
    if (threadIdx.x >= T::THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::COPIER_REGISTERS));
        Copier<Plan> copier(plan, ring);
        if (copier.warp < copier.warps) copier.run();
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::REGISTERS));
    await_dependencies();
    PipelineState turn;
    const uint32_t works = plan.works();
#pragma unroll 1
    for (uint32_t work = blockIdx.x / T::SPLIT; work < works; work += gridDim.x / T::SPLIT) {
        const auto at = plan.coord_of(work);
        float sum[T::COLS / 2] = {};
        plan.by_type(at, [&](auto type) { sum_tile<decltype(type)::value>(plan, ring, turn, sum); });
        put(at, sum, ring.cluster);
    }
}

// The stages that a block's shared memory has room for.
template <class T>
__device__ __forceinline__ uint32_t stages_of(uint32_t stage_bytes) {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    const uint32_t most = T::RESIDENT > 1 ? T::COPIERS : MOST_STAGES;
    return min(most, (bytes - T::SUM_BYTES) / stage_bytes) / T::STAGE_STEP * T::STAGE_STEP;
}

// Bytes of a stage: x, and weight rows of so many bytes.
template <class T>
__device__ __forceinline__ uint32_t stage_bytes_of(uint32_t row_bytes) {
    return T::X_BYTES + (T::ROWS * row_bytes + 1023) / 1024 * 1024;
}
