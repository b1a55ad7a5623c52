// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, in 16-bit floats with sums in f32, for steps
// of few rows, whose time is that of reading the weights.
//
// A tile has 32 or 64 weight rows. Stages of 32 rows and a slice of columns come through a ring, as they stand in
// memory, copied by warps that do nothing else; the first ones from before the block waits for its producers. Two teams
// of eight warps take stages in turn. Each warp multiplies 128 columns of a slice: it unpacks weights to registers, and
// keeps its sums there until the tile ends. Then the sums of the warps are added in order, and those of the two blocks
// that may share a tile, half of the slices each.
#include "gemm/f16_small_batch.cuh"
#include "ptx/cluster.cuh"
#include "quant/activation.cuh"

// As in gemm_f16.cu: where there are none of these, the host chooses none.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp that copies 16 rows of every stage.
template <class T>
__device__ __forceinline__ void bring_weights(const Schedule<T> &plan) {
    const TensorArgs &args = plan.args;
    const uint32_t part = warp_number() - MATH_WARPS;
    const bool is_gated = plan.is_gated();
    PipelineState turn;
    uint32_t free = plan.stages;
#pragma unroll 1
    for (uint32_t tile = plan.begin(); tile < plan.tiles; tile += plan.step()) {
        const TileCoord corner = plan.coord_of(tile);
        const Matrix &m = args.segments[corner.segment].matrix;
        const uint32_t row_bytes = m.row_bytes, slice_bytes = m.slice_bytes, stride = stride_of(m.dtype);
        const uint8_t *first = m.data + (size_t)(corner.row + part * (is_gated ? 8 : 16)) * row_bytes;
        const uint8_t *second = is_gated ? args.segments[1].matrix.data + (first - m.data) : first + 8 * row_bytes;
#pragma unroll 1
        for (uint32_t slice = plan.first_slice; slice < plan.end_slice; slice++) {
            const uint32_t bytes = min(slice_bytes, row_bytes - slice * slice_bytes);
#pragma unroll 1
            for (uint32_t i = 0; i < T::PARTS; i++) {
                if (free > 0) free--;
                else wait_phase(plan.empty + 8 * turn.stage, turn.parity ^ 1);
                if (elect_lane()) {
                    const uint32_t barrier = plan.full + 8 * turn.stage,
                                   to = plan.ring + turn.stage * plan.stage_bytes + part * 16 * stride;
                    const size_t at = (size_t)slice * slice_bytes + (size_t)i * (is_gated ? 16 : 32) * row_bytes;
                    const uint8_t *one = first + at, *other = second + at;
                    announce(barrier, 16 * bytes);
#pragma unroll
                    for (uint32_t r = 0; r < 8; r++) copy_run(to + r * stride, one + r * row_bytes, bytes, barrier);
#pragma unroll
                    for (uint32_t r = 0; r < 8; r++)
                        copy_run(to + (8 + r) * stride, other + r * row_bytes, bytes, barrier);
                }
                __syncwarp();
                turn.skip(1, plan.stages);
            }
        }
    }
}

// Copies a chunk of a slice of x, by one lane.
template <class T>
__device__ __forceinline__ void copy_chunk(const Schedule<T> &plan, uint32_t slot, uint32_t slice, uint32_t chunk) {
    const int8_t *from = plan.args.x.q + f16_line(0, slice * SLICE_CHUNKS + chunk, plan.args.cols / F16_COLUMNS);
    copy_written(
        plan.x + slot * T::X_BYTES + chunk * T::COLS * F16_LINE, from, T::COLS * F16_LINE, plan.x_full + 8 * slot);
}

// The first slices of x, of which each warp that multiplies copies a chunk.
template <class T>
__device__ __forceinline__ void bring_first_columns(const Schedule<T> &plan) {
    const uint32_t chunk = warp_number(), count = min(plan.slots, plan.end_slice - plan.first_slice);
    static_assert(MATH_WARPS == SLICE_CHUNKS, "");
    if (elect_lane()) {
#pragma unroll 1
        for (uint32_t slot = 0; slot < count; slot++) {
            const uint32_t slice = plan.first_slice + slot, chunks = plan.groups_of(slice) / 2;
            if (chunk == 0) announce(plan.x_full + 8 * slot, chunks * T::COLS * F16_LINE);
            if (chunk < chunks) copy_chunk(plan, slot, slice, chunk);
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
#pragma unroll 1
    for (uint32_t tile = plan.begin(); tile < plan.tiles; tile += plan.step()) {
#pragma unroll 1
        for (uint32_t slice = plan.first_slice; slice < plan.end_slice; slice++) {
            if (first > 0) {
                first--;
            } else {
                wait_phase(plan.x_empty + 8 * turn.stage, turn.parity ^ 1);
                if (elect_lane()) {
                    const uint32_t chunks = plan.groups_of(slice) / 2;
                    announce(plan.x_full + 8 * turn.stage, chunks * T::COLS * F16_LINE);
                    for (uint32_t i = 0; i < chunks; i++) copy_chunk(plan, turn.stage, slice, i);
                }
                __syncwarp();
            }
            turn.skip(1, plan.slots);
        }
    }
}

__device__ __forceinline__ void load_four(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(at)
        : "memory");
}

// 128 columns of x: for each step of 16, two words of each 8 rows.
template <int N>
__device__ __forceinline__ void load_columns(uint32_t (&b)[8][N / 8][2], uint32_t at) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        if constexpr (N == 8) {
            const uint32_t own = at + chunk * N * F16_LINE + lane % 8 * F16_LINE + (lane / 8 ^ lane % 8) * 16;
#pragma unroll
            for (uint32_t s = 0; s < 4; s += 2) {
                uint32_t r[4];
                load_four(r, own ^ s * 32);
                b[4 * chunk + s][0][0] = r[0], b[4 * chunk + s][0][1] = r[1], b[4 * chunk + s + 1][0][0] = r[2],
                              b[4 * chunk + s + 1][0][1] = r[3];
            }
        } else {
            const uint32_t own =
                at + chunk * N * F16_LINE + (lane / 16 * 8 + lane % 8) * F16_LINE + (lane / 8 % 2 ^ lane % 8) * 16;
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) {
#pragma unroll
                for (uint32_t i = 0; i < N / 16; i++) {
                    uint32_t r[4];
                    load_four(r, (own + i * 16 * F16_LINE) ^ s * 32);
                    b[4 * chunk + s][2 * i][0] = r[0], b[4 * chunk + s][2 * i][1] = r[1];
                    b[4 * chunk + s][2 * i + 1][0] = r[2], b[4 * chunk + s][2 * i + 1][1] = r[3];
                }
            }
        }
    }
}

__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A warp's sums of the 32 rows of its stages.
template <class T>
using Sums = float[2][T::COLS / 8][4];

template <class T>
using Columns = uint32_t[8][T::COLS / 8][2];

// The products of a stage.
template <int TYPE, class T>
__device__ __forceinline__ void add_stage(Sums<T> &sum, const Columns<T> &b, const Places &p, uint32_t at) {
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
        Raw<TYPE> raw[2];
        load_raw(raw[0], p, at + m * 16 * stage_stride(TYPE)),
            load_raw(raw[1], p, at + (m * 16 + 8) * stage_stride(TYPE));
        const F16Group<TYPE> first = group_of(raw[0]), second = group_of(raw[1]);
        uint32_t a[4][4];
        unpack_steps<0>(first, second, a);
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
#pragma unroll
            for (uint32_t n = 0; n < T::COLS / 8; n++) multiply_add(sum[m][n], a[s], b[s][n]);
        }
        unpack_steps<1>(first, second, a);
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
#pragma unroll
            for (uint32_t n = 0; n < T::COLS / 8; n++) multiply_add(sum[m][n], a[s], b[4 + s][n]);
        }
    }
}

// The warp's products of a tile, and `between` after the first slice. Where it has one part, teams take slices in turn.
// A place in the ring is always read by the same team, so none takes a round of it for another.
template <int TYPE, class T, typename F>
__device__ __forceinline__ void sum_tile(
    const Schedule<T> &plan, PipelineState &turn, PipelineState &x_turn, Sums<T> &sum, const F &between) {
    const uint32_t warp = warp_number() % TEAM_WARPS, team = warp_number() / TEAM_WARPS;
    const bool is_resident = plan.is_resident();
    if (T::PARTS == 2) turn.skip(team, plan.stages);
    Places places = places_of<TYPE>(SLICE_GROUPS);
#pragma unroll 1
    for (uint32_t slice = plan.first_slice; slice < plan.end_slice; slice++) {
        const uint32_t slot = is_resident ? slice - plan.first_slice : x_turn.stage, x_full = plan.x_full + 8 * slot;
        if (T::PARTS == 2 || turn.stage % TEAMS == team) {
            const uint32_t groups = plan.groups_of(slice);
            const bool has_columns = 4 * warp < groups;
            if (T::COLS == 8 || groups < SLICE_GROUPS) places = places_of<TYPE>(groups);
            Columns<T> b;
            wait_phase(x_full, is_resident ? 0 : x_turn.parity);
            if (has_columns) load_columns<T::COLS>(b, plan.x + slot * T::X_BYTES + 2 * warp * T::COLS * F16_LINE);
            wait_phase(plan.full + 8 * turn.stage, turn.parity);
            if (has_columns) add_stage<TYPE, T>(sum, b, places, plan.ring + turn.stage * plan.stage_bytes);
            __syncwarp();
            if (elect_lane()) {
                arrive(plan.empty + 8 * turn.stage);
                if (!is_resident) arrive(plan.x_empty + 8 * slot);
            }
        }
        turn.skip(T::PARTS, plan.stages);
        if (!is_resident) x_turn.skip(1, plan.slots);
        if (slice == plan.first_slice) between();
    }
    if (T::PARTS == 2 && team == 1) {
        if (turn.stage == 0) turn.stage = plan.stages, turn.parity ^= 1;
        turn.stage--;
    }
}

__device__ __forceinline__ void store_two(uint32_t at, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(first), "f"(second) : "memory");
}

// To the other block of the cluster, which counts the bytes at its barrier.
__device__ __forceinline__ void send(uint32_t block, uint32_t to, float first, float second, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     address_in(block, to)),
        "f"(first), "f"(second), "r"(address_in(block, barrier))
        : "memory");
}

// What a lane puts out of a tile: rows g and g + 8 of its warp's columns.
template <class T>
struct Outputs {
    TileCoord at;
    float sum[T::OWN][2], before[T::OWN][2], factor[T::OWN];
};

// A warp adds up the even columns of a piece, or the odd ones; two blocks that share a tile put out the even ones or
// the odd ones.
template <class T>
struct Finisher {
    const Schedule<T> &plan;
    const uint32_t lane = threadIdx.x % WARP, warp = warp_number(), g = lane / 8 + lane / 4 % 2 * 4, t = lane % 4,
                   odd = warp % 2;

    __device__ __forceinline__ Finisher(const Schedule<T> &plan) : plan(plan) {}

    __device__ __forceinline__ uint32_t piece_of(uint32_t i) const { return (warp + i * MATH_WARPS) / 2; }
    __device__ __forceinline__ bool adds_up(uint32_t i) const { return piece_of(i) < T::PIECES; }
    __device__ __forceinline__ bool puts_out(uint32_t i) const {
        return adds_up(i) && (T::SPLIT == 1 || odd == plan.rank());
    }
    __device__ __forceinline__ uint32_t column_of(uint32_t i) const {
        return piece_of(i) % (T::COLS / 8) * 8 + 2 * t + odd;
    }
    __device__ __forceinline__ uint32_t row_of(uint32_t i) const { return piece_of(i) / (T::COLS / 8) * 16 + g; }
    __device__ __forceinline__ uint32_t sent_to(uint32_t i, uint32_t count) const {
        return plan.sent + count % 2 * T::SENT_BYTES + (piece_of(i) * WARP + lane) * 8;
    }

    // Loads what outputs are added to, and what they are multiplied by.
    __device__ __forceinline__ void prepare(Outputs<T> &out) const {
        const Segment &segment = plan.args.segments[out.at.segment];
        const float *factors = plan.args.x.factors;
#pragma unroll
        for (uint32_t i = 0; i < T::OWN; i++) {
            const bool is_row = puts_out(i) && column_of(i) < plan.batch,
                       adds = segment.adds && !plan.is_gated() && is_row;
            const float *before = segment.out + (size_t)column_of(i) * segment.matrix.rows + out.at.row + row_of(i);
            out.before[i][0] = adds ? before[0] : 0.0f, out.before[i][1] = adds ? before[8] : 0.0f;
            out.factor[i] = factors != nullptr && is_row ? factors[column_of(i)] * F16_SCALE : F16_SCALE;
        }
    }

    // Leaves the warp's sums where all find them, once those of the tile before have been taken.
    __device__ __forceinline__ void leave(const Sums<T> &sum, uint32_t count) const {
        if (count > 0) wait_phase(plan.taken, (count - 1) % 2);
        const uint32_t sharer = T::PARTS == 2 ? warp % TEAM_WARPS : warp,
                       first = T::PARTS == 2 ? warp / TEAM_WARPS * T::PIECES / 2 : 0;
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
#pragma unroll
            for (uint32_t n = 0; n < T::COLS / 8; n++) {
                const uint32_t to = plan.sums + (sharer * T::PIECES + first + m * (T::COLS / 8) + n) * 512 + lane * 8;
                store_two(to, sum[m][n][0], sum[m][n][2]), store_two(to + 256, sum[m][n][1], sum[m][n][3]);
            }
        }
        __syncwarp();
        if (elect_lane()) arrive(plan.ready);
    }

    // Adds the sums of all warps of the block, in order; half of the results go to the other block of the cluster.
    __device__ __forceinline__ void take(Outputs<T> &out, uint32_t count) const {
        prepare(out);
        wait_phase(plan.ready, count % 2);
#pragma unroll
        for (uint32_t i = 0; i < T::OWN; i++) {
            if (!adds_up(i)) break;
            uint2 parts[T::SHARERS];
#pragma unroll
            for (uint32_t w = 0; w < T::SHARERS; w++) {
                parts[w] =
                    load_shared_as<uint2>(plan.sums + (w * T::PIECES + piece_of(i)) * 512 + odd * 256 + lane * 8);
            }
            float first = __uint_as_float(parts[0].x), second = __uint_as_float(parts[0].y);
#pragma unroll
            for (uint32_t w = 1; w < T::SHARERS; w++) {
                first = __fadd_rn(first, __uint_as_float(parts[w].x)),
                second = __fadd_rn(second, __uint_as_float(parts[w].y));
            }
            out.sum[i][0] = first, out.sum[i][1] = second;
            if (!puts_out(i)) send(plan.rank() ^ 1, sent_to(i, count), first, second, plan.met + count % 2 * 8);
        }
        __syncwarp();
        if (elect_lane()) arrive(plan.taken);
    }

    // Adds what the other block has sent of tile number `count`, and puts all out.
    __device__ __forceinline__ void end(Outputs<T> &out, uint32_t count) const {
        if constexpr (T::SPLIT == 2) {
            const uint32_t barrier = plan.met + count % 2 * 8;
            wait_phase(barrier, count / 2 % 2);
            if (threadIdx.x == 0) announce(barrier, T::SENT_BYTES);
        }
        const TensorArgs &args = plan.args;
        const Segment &segment = args.segments[out.at.segment];
        const uint32_t rows = segment.matrix.rows;
#pragma unroll
        for (uint32_t i = 0; i < T::OWN; i++) {
            if (!puts_out(i)) break;
            if constexpr (T::SPLIT == 2) {
                const uint2 other = load_shared_as<uint2>(sent_to(i, count));
                out.sum[i][0] = __fadd_rn(out.sum[i][0], __uint_as_float(other.x)),
                out.sum[i][1] = __fadd_rn(out.sum[i][1], __uint_as_float(other.y));
            }
            const uint32_t column = column_of(i);
            const float v[2] = {__fmul_rn(out.sum[i][0], out.factor[i]), __fmul_rn(out.sum[i][1], out.factor[i])};
            if (plan.is_gated()) {
                // Lanes of units two apart have two neighbours in memory.
                const uint32_t unit = out.at.row + row_of(i) / 16 * 8 + g;
                const float own = gated(plan.args.unit, v[0], v[1]), other = __shfl_xor_sync(ALL_LANES, own, 16);
                if (column >= plan.batch || unit % 4 >= 2) continue;
                const size_t to = f16_quad_at(column, unit & ~3u, rows);
                *reinterpret_cast<uint32_t *>(args.gated.q + (unit & 1 ? to ^ 16 : to)) = f16_pair(own, other);
            } else if (column < plan.batch) {
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
                    const uint32_t row = out.at.row + row_of(i) + 8 * r;
                    const float biased = segment.bias != nullptr ? __fadd_rn(v[r], segment.bias[row]) : v[r];
                    segment.out[(size_t)column * rows + row] =
                        segment.adds ? __fmaf_rn(segment.adds, biased, out.before[i][r]) : biased;
                }
            }
        }
    }
};

template <class T>
__device__ __forceinline__ void make_barriers(const Schedule<T> &plan) {
    const uint32_t i = threadIdx.x;
    if (i < MOST_STAGES) make_barrier(plan.full + 8 * i, COPY_WARPS), make_barrier(plan.empty + 8 * i, TEAM_WARPS);
    if (i < MOST_SLOTS) make_barrier(plan.x_full + 8 * i, 1), make_barrier(plan.x_empty + 8 * i, T::PARTS * TEAM_WARPS);
    if (i == 0) make_barrier(plan.ready, MATH_WARPS), make_barrier(plan.taken, MATH_WARPS);
    if (i < 2) make_barrier(plan.met + 8 * i, 1);
    if (i < WARP) publish_barriers();
    __syncthreads();
    if (T::SPLIT > 1) {
        if (i < 2) announce(plan.met + 8 * i, T::SENT_BYTES);
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
}

template <class T>
__device__ __forceinline__ void gemm_f16_small_batch(const TensorArgs &args, const Shape &shape) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[2 * MOST_STAGES + 2 * MOST_SLOTS + 4];
    const Schedule<T> plan(args, shape, shared_address(shared), shared_address(barriers));
    make_barriers<T>(plan);
    launch_dependents();
    const uint32_t warp = warp_number();
    if (warp >= MATH_WARPS) {
        if (T::DEALS) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS));
        if (warp < MATH_WARPS + COPY_WARPS) bring_weights<T>(plan);
        else if (warp == MATH_WARPS + COPY_WARPS) bring_columns<T>(plan);
        return;
    }
    if (T::DEALS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    await_dependencies();
    if (plan.begin() < plan.tiles) bring_first_columns(plan);
    const Finisher<T> finisher(plan);
    PipelineState turn, x_turn;
    Outputs<T> out;
    uint32_t count = 0;
    // Of the tile before, whose sums all warps have left by the time that the first slice of the next is multiplied: so
    // none waits for another.
    const auto take = [&] {
        if (count > 0) finisher.take(out, count - 1);
    };
#pragma unroll 1
    for (uint32_t tile = plan.begin(); tile < plan.tiles; tile += plan.step(), count++) {
        const TileCoord at = plan.coord_of(tile);
        Sums<T> sum = {};
        by_gemm_type(args.segments[at.segment].matrix.dtype,
            [&](auto type) { sum_tile<decltype(type)::value, T>(plan, turn, x_turn, sum, take); });
        if (plan.first_slice == plan.end_slice) take();
        // What the other block sent of the tile before is there by now.
        if (count > 0) finisher.end(out, count - 1);
        finisher.leave(sum, count);
        out.at = at;
    }
    take();
    if (count > 0) finisher.end(out, count - 1);
}

#define GEMM_F16_SMALL_BATCH(family, file, name, N, PARTS, SPLIT)                                                 \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(Tile<N, PARTS, SPLIT>::THREADS, 1) \
        name(const __grid_constant__ TensorArgs args, Shape shape) {                                              \
        gemm_f16_small_batch<Tile<N, PARTS, SPLIT>>(args, shape);                                                 \
    }
#include "kernels.def"

#endif
