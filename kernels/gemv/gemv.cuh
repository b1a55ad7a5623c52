// A row of activations, or a few, times up to six matrices, with what stands before and after it in a layer: the norm
// of a single row, bias, the addition to the residual, the gated unit, the choice of the best token.
//
// The warps of a block take the rows of its tile in turn and stream them through rings in shared memory, whose first
// copies start before the block waits for its producers. The sums have the order of `gemm_dp4a.cu`, so both give the
// same bits. A single row and quantized weights have a way of their own (gemv_b1.cuh), which is the shorter the more it
// counts.
#pragma once
#include "elementwise/rms_norm.cuh"
#include "gemm/segments.cuh"
#include "ptx/mbarrier.cuh"
#include "quant/activation.cuh"
#include "sampling/argmax.cuh"

struct MatvecArgs {
    Activation x;       // the input of the norm where there is one; its 8-bit form is then made here
    const float *norm;  // weights, null without a norm
    Activation gated;   // where activate(segment 0) * segment 1 goes; x is null where the segments are independent
    Sigmoid unit;       // of that activation
    unsigned long long *best;  // null where no token is chosen
    float eps;
    uint32_t cols, count, rows_a_warp;  // with a gated unit, pairs of rows a warp
    // Of a warp's ring; `units` of a stage are half one row's and half another's, or all one row's.
    uint32_t stage_bytes, stages, units;
    uint32_t batch;  // rows of x, for the host
    Segment segments[6];
};
static_assert(sizeof(MatvecArgs) == 456, "as in args.rs");

constexpr int WARPS = 8;
// Columns that a unit of work has for each kind of type: a slice, or as many floats as fill about as much.
constexpr uint32_t QUANT_COLS = 1024, HALF_COLS = 512, FLOAT_COLS = 256;
// Rows whose lanes are added together, and the distance of their places, which keeps banks apart.
constexpr int SUM_ROWS = 8, SUM_STRIDE = 36;
constexpr int MAX_PAIRS = 4;
constexpr uint32_t MOST_STAGES = 4;

// Activations in shared memory, in two planes: for quantized weights a group's lower and upper 16 values, for floats
// each 8 values' halves.
struct Input {
    uint8_t *first, *second;
    Meta *meta;
};

// Those of several rows for quantized weights stand by units, and in a unit by rows: planes and factors have fixed
// places then.
constexpr uint32_t UPPER = SLICE_GROUPS * 16, FACTORS = 2 * UPPER, ROW_OF_UNIT = FACTORS + SLICE_GROUPS * sizeof(Meta);

template <uint32_t TYPE>
constexpr bool IS_QUANTIZED = TYPE >= Q8_0;
template <uint32_t TYPE>
constexpr uint32_t UNIT_COLS = IS_QUANTIZED<TYPE> ? QUANT_COLS
    : TYPE == F32                                 ? FLOAT_COLS
                                                  : HALF_COLS;
template <uint32_t TYPE>
constexpr uint32_t UNIT_BYTES =
    IS_QUANTIZED<TYPE> ? bytes_of_slice(TYPE, SLICE_GROUPS) : UNIT_COLS<TYPE> * (TYPE == F32 ? 4 : 2);

// The rows of one warp on their way through its ring: two streams of consecutive rows side by side, the second perhaps
// shorter by one row, or a single row.
struct Streams {
    const uint8_t *first, *second;  // what is copied next
    const uint8_t *ring;
    uint32_t ring_address, barriers;  // in shared memory, a barrier of 8 bytes a stage
    uint32_t part_bytes, last_bytes, parts, units, jump, stages, stage_bytes;  // `units` are those of a row in a part
    uint32_t rows[2];
    // Stages that are filled and taken next; the phase of the latter.
    uint32_t next_row, next_part, filled, taken, phase;

    // Starts the copies of the next part, if there is one.
    __device__ __forceinline__ void start() {
        if (next_row < rows[0]) {
            const bool last = next_part + 1 == parts, both = next_row < rows[1];
            const uint32_t bytes = last ? last_bytes : part_bytes, to = ring_address + filled * stage_bytes;
#if __CUDA_ARCH__ >= 900
            if (elect_lane()) {
                const uint32_t barrier = barriers + filled * 8;
                announce(barrier, both ? 2 * bytes : bytes);
                copy_run(to, first, bytes, barrier);
                if (both) copy_run(to + part_bytes, second, bytes, barrier);
            }
#else
            copy_lanes(to, first, bytes);
            if (both) copy_lanes(to + part_bytes, second, bytes);
#endif
            const uint32_t step = last ? bytes + jump : bytes;
            first += step, second += step, filled = filled + 1 == stages ? 0 : filled + 1;
            next_part = last ? 0 : next_part + 1, next_row += last;
        }
#if __CUDA_ARCH__ < 900
        commit_copies();
#endif
    }

    // The stage that was started first, once all of it is there.
    __device__ __forceinline__ const uint8_t *wait() const {
#if __CUDA_ARCH__ >= 900
        wait_phase(barriers + taken * 8, phase);
#else
        switch (stages) {
            case 1: wait_copies<0>(); break;
            case 2: wait_copies<1>(); break;
            case 3: wait_copies<2>(); break;
            default: wait_copies<3>(); break;
        }
#endif
        return ring + taken * stage_bytes;
    }

    __device__ __forceinline__ void release() {
        __syncwarp();
        taken++;
        if (taken == stages) taken = 0, phase ^= 1;
        start();
    }
};

// The lane's sums of two rows of weights with each row of activations.
template <int BATCH>
using Sums = float[BATCH][2];

// Adds the products of unit `unit` of COUNT rows, which lie `distance` bytes apart. Of a WHOLE slice every place is
// known beforehand.
template <uint32_t TYPE, int COUNT, int BATCH, bool WHOLE>
__device__ __forceinline__ void add_unit(
    const uint8_t *rows, uint32_t distance, uint32_t cols, const Input &x, uint32_t unit, Sums<BATCH> &sum) {
    const uint32_t lane = threadIdx.x % WARP;
    if constexpr (IS_QUANTIZED<TYPE>) {
        // Lanes behind the last group add nothing: they take its weights, which stand where they may look.
        const uint32_t start = unit * SLICE_GROUPS,
                       groups = WHOLE ? SLICE_GROUPS : min((uint32_t)SLICE_GROUPS, cols / 32 - start);
        const uint32_t index = WHOLE ? lane : min(lane, groups - 1);
        Group g[COUNT];
#pragma unroll
        for (int r = 0; r < COUNT; r++) g[r] = load_group<TYPE, true>(rows + r * distance, groups, index);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const uint8_t *own = x.first + (unit * BATCH + n) * ROW_OF_UNIT;
            const int4 a = reinterpret_cast<const int4 *>(own)[index],
                       b = reinterpret_cast<const int4 *>(own + UPPER)[index];
            const Meta meta = reinterpret_cast<const Meta *>(own + FACTORS)[index];
#pragma unroll
            for (int r = 0; r < COUNT; r++) {
                const float added = add_group<TYPE, true>(g[r], a, b, meta, sum[n][r]);
                sum[n][r] = lane < groups ? added : sum[n][r];
            }
        }
    } else {
        constexpr uint32_t SIZE = TYPE == F32 ? 4 : 2;
#pragma unroll
        for (uint32_t s = 0; s < UNIT_COLS<TYPE> / 256; s++) {
            const uint32_t at = unit * (UNIT_COLS<TYPE> / 8) + s * WARP + lane;
            if (8 * at >= cols) return;
            float w[COUNT][8];
#pragma unroll
            for (int r = 0; r < COUNT; r++) load_floats<TYPE>(rows + r * distance + (s * WARP + lane) * 8 * SIZE, w[r]);
#pragma unroll
            for (int n = 0; n < BATCH; n++) {
                const uint32_t own = n * (cols / 8) + at;
                const float4 a = reinterpret_cast<const float4 *>(x.first)[own],
                             b = reinterpret_cast<const float4 *>(x.second)[own];
#pragma unroll
                for (int r = 0; r < COUNT; r++) sum[n][r] = add_floats(w[r], a, b, sum[n][r]);
            }
        }
    }
}

// The same for the units from `first` on that the matrix has, `most` at most.
template <uint32_t TYPE, int COUNT, int BATCH>
__device__ __forceinline__ void add_part(const uint8_t *rows, uint32_t distance, uint32_t cols, const Input &x,
    uint32_t first, uint32_t most, Sums<BATCH> &sum) {
    const uint32_t units = min(most, (cols - first * UNIT_COLS<TYPE> + UNIT_COLS<TYPE> - 1) / UNIT_COLS<TYPE>);
    const uint32_t whole = IS_QUANTIZED<TYPE> ? min(units, cols / UNIT_COLS<TYPE> - first) : units;
    uint32_t unit = 0;
    // Two units of several rows at once are more than registers hold.
    if constexpr (BATCH > 1) {
#pragma unroll 1
        for (; unit < whole; unit++, rows += UNIT_BYTES<TYPE>)
            add_unit<TYPE, COUNT, BATCH, true>(rows, distance, cols, x, first + unit, sum);
    } else {
#pragma unroll 1
        for (; unit + 2 <= whole; unit += 2, rows += 2 * UNIT_BYTES<TYPE>) {
            add_unit<TYPE, COUNT, BATCH, true>(rows, distance, cols, x, first + unit, sum);
            add_unit<TYPE, COUNT, BATCH, true>(rows + UNIT_BYTES<TYPE>, distance, cols, x, first + unit + 1, sum);
        }
    }
#pragma unroll 1
    for (; unit < units; unit++, rows += UNIT_BYTES<TYPE>)
        add_unit<TYPE, COUNT, BATCH, false>(rows, distance, cols, x, first + unit, sum);
}

// The lane's sums of the next two rows, or of a single row.
template <uint32_t TYPE, int BATCH>
__device__ __forceinline__ void add_rows(Streams &streams, const Matrix &m, const Input &x, Sums<BATCH> &sum) {
#pragma unroll 1
    for (uint32_t part = 0; part < streams.parts; part++) {
        const uint8_t *stage = streams.wait();
        const uint32_t units = streams.units, first = part * units;
        // A single row is rare in batches: what stands beside it is multiplied in vain.
        if (BATCH > 1 || streams.rows[1] > 0)
            add_part<TYPE, 2, BATCH>(stage, streams.part_bytes, m.cols, x, first, units, sum);
        else add_part<TYPE, 1, BATCH>(stage, 0, m.cols, x, first, units, sum);
        streams.release();
    }
}

// Adds the lanes of up to eight rows, with the tree of `add_neighbours`; every four lanes have the sum of their row.
__device__ __forceinline__ float add_lanes(const float *sums) {
    const uint32_t lane = threadIdx.x % WARP;
    const float4 *p = reinterpret_cast<const float4 *>(sums + lane / 4 * SUM_STRIDE + lane % 4 * 8);
    const float4 a = p[0], b = p[1];
    const float low = __fadd_rn(__fadd_rn(a.x, a.y), __fadd_rn(a.z, a.w)),
                high = __fadd_rn(__fadd_rn(b.x, b.y), __fadd_rn(b.z, b.w));
    float total = __fadd_rn(low, high);
    total = __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 1));
    return __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 2));
}

// Puts four elements, number `quad` of the row, into the planes.
__device__ __forceinline__ void put_floats(const Input &to, uint32_t quad, const float4 &v) {
    reinterpret_cast<float4 *>(quad % 2 ? to.second : to.first)[quad / 2] = v;
}

// Moves what producers wrote, several elements a thread at a time, so that all of them are on their way at once.
template <int AHEAD, typename Read, typename Put>
__device__ __forceinline__ void fetch(uint32_t count, Read read, Put put) {
    decltype(read(0)) values[AHEAD];
    for (uint32_t start = threadIdx.x; start < count; start += AHEAD * blockDim.x) {
#pragma unroll
        for (uint32_t i = 0, at = start; i < AHEAD; i++, at += blockDim.x) {
            if (at < count) values[i] = read(at);
        }
#pragma unroll
        for (uint32_t i = 0, at = start; i < AHEAD; i++, at += blockDim.x) {
            if (at < count) put(at, values[i]);
        }
    }
}

// The values that a norm takes, times their weights.
__device__ __forceinline__ void prepare_normed(const MatvecArgs &args, const Input &to, float *shares) {
    const uint32_t quads = args.cols / 4;
    const float4 *weights = reinterpret_cast<const float4 *>(args.norm),
                 *x = reinterpret_cast<const float4 *>(args.x.x);
    weigh_row(x, weights, quads, shares, [&](uint32_t quad, const float4 &weighed) {
        if (quad < quads) put_floats(to, quad, weighed);
    });
}

// Puts 16 codes, number `at` of those of row `n`, into their place, with the factors of their group.
template <int BATCH>
__device__ __forceinline__ void put_half(
    const Input &to, uint32_t n, uint32_t at, const int4 &codes, const Meta &meta) {
    const uint32_t group = at / 2, index = group % SLICE_GROUPS;
    uint8_t *own = to.first + (group / SLICE_GROUPS * BATCH + n) * ROW_OF_UNIT;
    reinterpret_cast<int4 *>(own + (at % 2 ? UPPER : 0))[index] = codes;
    if (at % 2 == 0) reinterpret_cast<Meta *>(own + FACTORS)[index] = meta;
}

template <bool QUANTIZED, int BATCH>
__device__ __forceinline__ void prepare_plain(const MatvecArgs &args, const Input &to) {
    constexpr int AHEAD = BATCH > 2 ? 8 : 4;
    launch_then_await();
    if (!QUANTIZED) {
        // Rows stand one behind the other in either plane.
        const float4 *x = reinterpret_cast<const float4 *>(args.x.x);
        fetch<AHEAD>(
            BATCH * args.cols / 4, [&](uint32_t quad) { return x[quad]; },
            [&](uint32_t quad, const float4 &v) { put_floats(to, quad, v); });
        return;
    }
    struct Half {
        int4 codes;
        Meta meta;  // of the group, with its lower half
    };
    const int4 *q = reinterpret_cast<const int4 *>(args.x.q);
    const uint32_t halves = args.cols / 16;
    const auto read = [&](uint32_t at) {
        Half half;
        half.codes = q[at];
        if (at % 2 == 0) half.meta = args.x.meta[at / 2];
        return half;
    };
    fetch<AHEAD>(BATCH * halves, read, [&](uint32_t at, const Half &half) {
        uint32_t n = 0;
#pragma unroll
        for (int i = 1; i < BATCH; i++) n += at >= i * halves;
        put_half<BATCH>(to, n, at - n * halves, half.codes, half.meta);
    });
}

// Bias and residual, and the warp's best token.
__device__ __forceinline__ void put_sum(const MatvecArgs &args, const Segment &segment, float *out, uint32_t col,
    float v, float bias, float residual, unsigned long long &key) {
    if (segment.bias != nullptr) v = __fadd_rn(v, bias);
    if (segment.adds) v = __fmaf_rn(segment.adds, v, residual);
    out[col] = v;
    if (args.best != nullptr) key = max(key, key_of(v, col));
}

// Shared memory of a block beside its rings and its input.
template <int BATCH>
struct SharedStorage {
    __align__(16) float sums[WARPS][SUM_ROWS * SUM_STRIDE];
    float shares[WARPS], outputs[BATCH][WARPS * MAX_PAIRS];
    unsigned long long keys[BATCH][WARPS];
    unsigned long long barriers[WARPS][MOST_STAGES];
};

// The first row of a warp, and the end of the block's.
struct Rows {
    uint32_t first, end;
};

// Finds the warp's rows and starts the copies of their first parts, which have `pair_units` of each of two rows or
// `single_units` of one.
template <uint32_t TYPE>
__device__ __forceinline__ Rows start_streams(Streams &streams, const MatvecArgs &args, const Segment &segment,
    uint32_t pair_units, uint32_t single_units, const uint8_t *shared, const unsigned long long *barriers) {
    const uint32_t warp = warp_number();
    const bool pairs = args.gated.x != nullptr;
    const Matrix &m = segment.matrix;
    // Warps side by side read rows side by side, so that what is on its way at a time lies together in memory.
    const uint32_t tile = (blockIdx.x - segment.first_tile) * WARPS * args.rows_a_warp, first = tile + warp;
    const uint32_t end = min(tile + WARPS * args.rows_a_warp, m.rows), step = pairs ? WARPS : 2 * WARPS;
    const auto rows_from = [&](uint32_t row) { return row < end ? (end - row + step - 1) / step : 0; };
    streams.first = m.data + (size_t)first * m.row_bytes;
    streams.second = pairs ? args.segments[1].matrix.data + (size_t)first * m.row_bytes
                           : streams.first + (size_t)WARPS * m.row_bytes;
    streams.rows[0] = rows_from(first), streams.rows[1] = pairs ? streams.rows[0] : rows_from(first + WARPS);
    streams.jump = (step - 1) * m.row_bytes;
    streams.stages = args.stages, streams.stage_bytes = args.stage_bytes;
    streams.ring = shared + warp * args.stages * args.stage_bytes;
    streams.ring_address = shared_address(streams.ring),
    streams.barriers = shared_address(barriers + warp * MOST_STAGES);
    // Divided for each number of units, as both may be constants.
    const auto parts_of = [&](uint32_t units) {
        return (m.cols + units * UNIT_COLS<TYPE> - 1) / (units * UNIT_COLS<TYPE>);
    };
    const bool is_single = streams.rows[1] == 0;
    streams.units = is_single ? single_units : pair_units;
    streams.parts = is_single ? parts_of(single_units) : parts_of(pair_units);
    streams.part_bytes = min(streams.units * UNIT_BYTES<TYPE>, m.row_bytes);
    streams.last_bytes = m.row_bytes - (streams.parts - 1) * streams.part_bytes;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP < MOST_STAGES) make_barrier(streams.barriers + threadIdx.x % WARP * 8, 1);
    publish_barriers();
    __syncwarp();
#endif
#pragma unroll 1
    for (uint32_t i = 0; i < args.stages; i++) streams.start();
    return Rows{first, end};
}

// What the warps of a block have together: the blocks of the gated unit, or its best token.
template <int BATCH, typename BlockSpace>
__device__ __forceinline__ void finish_block(
    const MatvecArgs &args, uint32_t rows, BlockSpace &space, unsigned long long key) {
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const bool pairs = args.gated.x != nullptr;
    if (!pairs && args.best == nullptr) return;
    if (!pairs) {
        // Of the lanes that have the same row of the batch.
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2) {
            if (step < 8 || step >= 8 * BATCH) key = max(key, __shfl_xor_sync(ALL_LANES, key, step));
        }
        if (lane / 8 < BATCH && lane % 8 == 0) space.keys[lane / 8][warp] = key;
    }
    __syncthreads();
    if (pairs) {
        const uint32_t blocks = WARPS * args.rows_a_warp / WARP, of = BATCH == 1 ? 0 : warp / blocks;
        if (warp >= BATCH * blocks) return;
        const uint32_t at = threadIdx.x - of * blocks * WARP;
        emit_blocks(args.gated, of, blockIdx.x * WARPS * args.rows_a_warp + at, rows, space.outputs[of][at]);
    } else if (warp < BATCH) {
        key = warp_largest(lane < WARPS ? space.keys[warp][lane] : 0);
        if (lane == 0) atomicMax(args.best + warp, key);
    }
}

// The whole block for one type of weights: a path that goes through one stretch of code, as the kernel's whole is more
// than is kept at hand.
template <uint32_t TYPE, int BATCH>
__device__ __forceinline__ void multiply(const MatvecArgs &args, const Segment &segment, SharedStorage<BATCH> &space) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr bool QUANTIZED = IS_QUANTIZED<TYPE>;
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const bool pairs = args.gated.x != nullptr;
    const Matrix &m = segment.matrix;
    Streams streams{};
    const Rows rows = start_streams<TYPE>(
        streams, args, segment, args.units / 2, BATCH > 1 ? args.units / 2 : args.units, shared, space.barriers[0]);
    const uint32_t first = rows.first, end = rows.end;

    // Eight sums are finished at a time, every four lanes one: of some rounds of the loop, each row of the batch, and
    // the two rows of weights. What is added to the first ones is read long before it is needed.
    constexpr int ROUNDS = SUM_ROWS / (2 * BATCH);
    const uint32_t side = lane / 4 % 2, n = lane / 8 % BATCH, round = lane / 8 / BATCH;
    uint32_t column = first + WARPS * (2 * round + side);
    const bool has_columns = !pairs && lane % 4 == 0;
    float *out = segment.out + (size_t)n * m.rows;
    float bias = has_columns && column < end && segment.bias != nullptr ? __ldg(segment.bias + column) : 0.0f;

    Input x;
    x.first = shared + WARPS * args.stages * args.stage_bytes;
    const uint32_t plane = BATCH * (QUANTIZED ? args.cols / 2 : args.cols * 2);
    x.second = x.first + plane, x.meta = reinterpret_cast<Meta *>(x.second + plane);
    const bool norms = BATCH == 1 && args.norm != nullptr;
    if (norms) prepare_normed(args, x, space.shares);
    else prepare_plain<QUANTIZED, BATCH>(args, x);
    float residual = has_columns && column < end && segment.adds ? out[column] : 0.0f;
    __syncthreads();
    float factor = 1.0f;
    if (norms) factor = norm_factor(space.shares, args.cols, args.eps);
    else if (args.x.factors != nullptr) factor = args.x.factors[n];

    unsigned long long key = 0;
    for (uint32_t i = 0; i < streams.rows[0]; i++) {
        if (BATCH > 1 && i > 0 && i % ROUNDS == 0) {
            column = first + WARPS * (2 * (i + round) + side);
            if (has_columns && column < end && segment.bias != nullptr) bias = __ldg(segment.bias + column);
            if (has_columns && column < end && segment.adds) residual = out[column];
        }
        Sums<BATCH> sum = {};
        add_rows<TYPE, BATCH>(streams, m, x, sum);
        float *place = space.sums[warp] + i % ROUNDS * 2 * BATCH * SUM_STRIDE + lane;
#pragma unroll
        for (int r = 0; r < 2 * BATCH; r++) place[r * SUM_STRIDE] = sum[r / 2][r % 2];
        if (i % ROUNDS != ROUNDS - 1 && i + 1 != streams.rows[0]) continue;
        __syncwarp();
        const uint32_t row = i / ROUNDS * ROUNDS + round;
        const float v = __fmul_rn(add_lanes(space.sums[warp]), factor);
        if (pairs) {
            const float up = __shfl_down_sync(ALL_LANES, v, 4);
            if (lane % 8 == 0 && row <= i) space.outputs[n][warp + WARPS * row] = gated(args.unit, v, up);
        } else if (lane % 4 == 0 && row <= i && row < (side ? streams.rows[1] : streams.rows[0])) {
            const uint32_t col = first + WARPS * (2 * row + side);
            const float plus = col == column || segment.bias == nullptr ? bias : segment.bias[col];
            put_sum(args, segment, out, col, v, plus, col == column || !segment.adds ? residual : out[col], key);
        }
        __syncwarp();
    }
    finish_block<BATCH>(args, m.rows, space, key);
}

// The matrix that the block has rows of.
__device__ __forceinline__ const Segment &own_segment(const MatvecArgs &args) {
    return args.segments[args.gated.x != nullptr ? 0 : segment_of(args.segments, args.count, blockIdx.x)];
}
