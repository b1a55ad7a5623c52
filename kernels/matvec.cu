// One row of activations times up to three matrices, with what stands before and after it in a layer: a norm, bias, the addition to the
// residual, the gated unit, the choice of the best token.
//
// A warp has consecutive rows of a matrix and streams them through a ring in shared memory, whose first copies start before the block waits for
// its producers. The sums have the order of `matmul.cu`, so both give the same bits.
#include "common/activation.cuh"
#include "common/async.cuh"
#include "common/best.cuh"
#include "common/matmul.cuh"
#include "common/norm.cuh"

struct MatvecArgs {
    Activation x;       // the input of the norm where there is one; its 8-bit form is then made here
    const float *norm;  // weights, null without a norm
    Activation gated;   // where silu(segment 0) * segment 1 goes; x is null where the segments are independent
    unsigned long long *best;  // null where no token is chosen
    float eps;
    uint32_t cols, count, rows_a_warp;  // with a gated unit, pairs of rows a warp
    uint32_t stage_bytes, pad;
    Segment segments[3];
};

constexpr int WARPS = 8;
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 3
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SLICES_FACTOR
#define SLICES_FACTOR 1
#endif
// Columns that a stage holds, for each kind of type: two slices of 1024 or so many floats that a lane loads 16 bytes four times.
constexpr uint32_t QUANT_COLS = 2048 * SLICES_FACTOR, HALF_COLS = 1024 * SLICES_FACTOR, FLOAT_COLS = 512 * SLICES_FACTOR;
// Rows whose lanes are added together, and the distance of their places, which keeps banks apart.
constexpr int SUM_ROWS = 8, SUM_STRIDE = 36;
constexpr int MAX_PAIRS = 8;

// Activations in shared memory, in two planes: for quantized weights a group's lower and upper 16 values, for floats each 8 values' halves.
struct Input {
    uint8_t *first, *second;
    Meta *meta;
};

__device__ __forceinline__ uint32_t stage_cols(uint32_t dtype) {
    return dtype >= Q8_0 ? QUANT_COLS : dtype == F32 ? FLOAT_COLS : HALF_COLS;
}

// The rows of one warp, and the ring that they pass through.
struct Rows {
    const uint8_t *first, *second;  // of the matrix, and of the other one of pairs: four rows of each in turn
    uint8_t *ring;
    uint64_t *gates;
    uint32_t row_bytes, part_bytes, parts, stage_bytes, count;
    uint32_t next_row, next_part, started, taken;

    __device__ __forceinline__ const uint8_t *row(uint32_t i) const {
        if (second == nullptr) return first + (size_t)i * row_bytes;
        return (i & 4 ? second : first) + (size_t)(i / 8 * 4 + i % 4) * row_bytes;
    }

    // Starts the copy of the next part of a row into the stage that was taken last.
    __device__ __forceinline__ void start() {
        if (next_row >= count) return;
        const uint32_t offset = next_part * part_bytes, stage = started % STAGES;
        start_copy(ring + stage * stage_bytes, row(next_row) + offset, min(part_bytes, row_bytes - offset), gates + stage);
        started++;
        if (++next_part == parts) next_part = 0, next_row++;
    }

    __device__ __forceinline__ const uint8_t *wait() const {
        const uint32_t stage = taken % STAGES;
        wait_copy(gates + stage, taken / STAGES);
        return ring + stage * stage_bytes;
    }

    __device__ __forceinline__ void release() {
        __syncwarp();
        taken++;
        start();
    }
};

template <int TYPE>
__device__ __forceinline__ float add_part(const uint8_t *stage, const Matrix &m, const Input &x, uint32_t part, float sum) {
    const uint32_t lane = threadIdx.x % WARP;
    if constexpr (TYPE >= Q8_0) {
        const uint32_t all = m.cols / 32;
#pragma unroll
        for (uint32_t s = 0; s < QUANT_COLS / 1024; s++) {
            const uint32_t start = (part * (QUANT_COLS / 1024) + s) * SLICE_GROUPS, at = start + lane;
            if (at >= all) break;
            const Group g = load_group<TYPE>(stage + s * m.slice_bytes, min((uint32_t)SLICE_GROUPS, all - start), lane);
            const int4 a = reinterpret_cast<const int4 *>(x.first)[at], b = reinterpret_cast<const int4 *>(x.second)[at];
            sum = add_group<TYPE>(g, a, b, x.meta[at], sum);
        }
    } else {
        constexpr uint32_t COLS = TYPE == F32 ? FLOAT_COLS : HALF_COLS, SIZE = TYPE == F32 ? 4 : 2;
#pragma unroll
        for (uint32_t s = 0; s < COLS / 256; s++) {
            const uint32_t at = part * (COLS / 8) + s * WARP + lane;
            if (8 * at >= m.cols) break;
            float w[8];
            load_floats<TYPE>(stage + (s * WARP + lane) * 8 * SIZE, w);
            sum = add_floats(w, reinterpret_cast<const float4 *>(x.first)[at], reinterpret_cast<const float4 *>(x.second)[at], sum);
        }
    }
    return sum;
}

template <int TYPE>
__device__ __forceinline__ float add_row(Rows &rows, const Matrix &m, const Input &x) {
    float sum = 0.0f;
    for (uint32_t part = 0; part < rows.parts; part++) {
        sum = add_part<TYPE>(rows.wait(), m, x, part, sum);
        rows.release();
    }
    return sum;
}

__device__ __forceinline__ float dot_row(Rows &rows, const Matrix &m, const Input &x) {
    switch (m.dtype) {
        case F32: return add_row<F32>(rows, m, x);
        case F16: return add_row<F16>(rows, m, x);
        case BF16: return add_row<BF16>(rows, m, x);
        case Q8_0: return add_row<Q8_0>(rows, m, x);
        case Q4_K: return add_row<Q4_K>(rows, m, x);
        case Q5_K: return add_row<Q5_K>(rows, m, x);
        default: return add_row<Q6_K>(rows, m, x);
    }
}

// Adds the lanes of up to eight rows, with the tree of `warp_sum`; every four lanes have the sum of their row.
__device__ __forceinline__ float add_lanes(const float *sums) {
    const uint32_t lane = threadIdx.x % WARP;
    const float *p = sums + lane / 4 * SUM_STRIDE + lane % 4;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __fadd_rn(p[4 * i], p[4 * i + 16]);
    float total = __fadd_rn(__fadd_rn(v[0], v[2]), __fadd_rn(v[1], v[3]));
    total = __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 2));
    return __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 1));
}

// Puts four elements, number `quad` of the row, into the planes.
__device__ __forceinline__ void put_codes(const Input &to, uint32_t quad, uint32_t codes, const Meta &meta) {
    const uint32_t group = quad / 8, part = quad % 8;
    reinterpret_cast<uint32_t *>(part < 4 ? to.first : to.second)[group * 4 + part % 4] = codes;
    if (part == 0) to.meta[group] = meta;
}

__device__ __forceinline__ void put_floats(const Input &to, uint32_t quad, const float4 &v) {
    reinterpret_cast<float4 *>(quad % 2 ? to.second : to.first)[quad / 2] = v;
}

constexpr int NORM_QUADS = 4;

// The values that a norm takes, times their weights; the weights come to registers before the wait.
__device__ __forceinline__ void prepare_normed(const MatvecArgs &args, const Input &to, bool quantized, float *shares) {
    const uint32_t quads = args.cols / 4;
    const float4 *weights = reinterpret_cast<const float4 *>(args.norm), *x = reinterpret_cast<const float4 *>(args.x.x);
    float4 early[NORM_QUADS];
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        early[i] = quad < quads ? __ldg(weights + quad) : make_float4(0, 0, 0, 0);
    }
    wait_for_producers();
    float sum = 0.0f;
    const auto take = [&](uint32_t quad, const float4 &w) {
        const float4 v = quad < quads ? x[quad] : make_float4(0, 0, 0, 0);
        sum = add_squares(v, sum);
        const float4 weighed = weigh(v, w);
        if (!quantized) {
            if (quad < quads) put_floats(to, quad, weighed);
            return;
        }
        Meta meta;
        const uint32_t codes = encode_quad(weighed, meta);
        if (quad < quads) put_codes(to, quad, codes, meta);
    };
#pragma unroll
    for (int i = 0; i < NORM_QUADS; i++) {
        if (i * NORM_THREADS < quads) take(threadIdx.x + i * NORM_THREADS, early[i]);
    }
    for (uint32_t start = NORM_QUADS * NORM_THREADS; start < quads; start += NORM_THREADS) {
        const uint32_t quad = start + threadIdx.x;
        take(quad, quad < quads ? __ldg(weights + quad) : make_float4(0, 0, 0, 0));
    }
    share_squares(sum, shares);
}

__device__ __forceinline__ void prepare_plain(const MatvecArgs &args, const Input &to, bool quantized) {
    wait_for_producers();
    if (!quantized) {
        const float4 *x = reinterpret_cast<const float4 *>(args.x.x);
        for (uint32_t quad = threadIdx.x; quad < args.cols / 4; quad += blockDim.x) put_floats(to, quad, x[quad]);
        return;
    }
    const int4 *q = reinterpret_cast<const int4 *>(args.x.q);
    for (uint32_t i = threadIdx.x; i < args.cols / 16; i += blockDim.x) reinterpret_cast<int4 *>(i % 2 ? to.second : to.first)[i / 2] = q[i];
    for (uint32_t i = threadIdx.x; i < args.cols / 32; i += blockDim.x) to.meta[i] = args.x.meta[i];
}

// Bias and residual, and the warp's best token.
__device__ __forceinline__ void put_sum(const MatvecArgs &args, const Segment &segment, uint32_t col, float v, unsigned long long &key) {
    if (segment.bias != nullptr) v = __fadd_rn(v, segment.bias[col]);
    if (segment.adds) v = __fadd_rn(segment.out[col], v);
    segment.out[col] = v;
    if (args.best != nullptr) key = max(key, key_of(v, col));
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, MIN_BLOCKS) matvec(const __grid_constant__ MatvecArgs args, Shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t gates[WARPS][STAGES];
    __shared__ float sums[WARPS][SUM_ROWS * SUM_STRIDE];
    __shared__ float shares[WARPS], units[WARPS * MAX_PAIRS];
    __shared__ unsigned long long keys[WARPS];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool pairs = args.gated.x != nullptr;
    const Segment &segment = args.segments[pairs ? 0 : segment_of(args.segments, args.count, blockIdx.x)];
    const Matrix &m = segment.matrix;
    const uint32_t first = ((blockIdx.x - segment.first_tile) * WARPS + warp) * args.rows_a_warp;
    const bool quantized = m.dtype >= Q8_0;

    if (lane == 0) make_gates(gates[warp], STAGES);
    __syncwarp();
    Rows rows{};
    rows.first = m.data + (size_t)first * m.row_bytes;
    rows.second = pairs ? args.segments[1].matrix.data + (size_t)first * m.row_bytes : nullptr;
    rows.ring = shared + warp * STAGES * args.stage_bytes, rows.gates = gates[warp];
    rows.row_bytes = m.row_bytes, rows.stage_bytes = args.stage_bytes;
    rows.part_bytes = stage_cols(m.dtype) / (quantized ? 1024 : 256) * m.slice_bytes;
    rows.parts = (m.cols + stage_cols(m.dtype) - 1) / stage_cols(m.dtype);
    rows.count = first < m.rows ? min(args.rows_a_warp, m.rows - first) * (pairs ? 2 : 1) : 0;
    for (int i = 0; i < STAGES; i++) rows.start();

    Input x;
    x.first = shared + WARPS * STAGES * args.stage_bytes;
    const uint32_t plane = quantized ? args.cols / 2 : args.cols * 2;
    x.second = x.first + plane, x.meta = reinterpret_cast<Meta *>(x.second + plane);
    if (args.norm != nullptr) prepare_normed(args, x, quantized, shares);
    else prepare_plain(args, x, quantized);
    __syncthreads();
    float factor = 1.0f;
    if (args.norm != nullptr) factor = norm_factor(shares, args.cols, args.eps);

    unsigned long long key = 0;
    for (uint32_t i = 0; i < rows.count; i++) {
        sums[warp][i % SUM_ROWS * SUM_STRIDE + lane] = dot_row(rows, m, x);
        if (i % SUM_ROWS != SUM_ROWS - 1 && i + 1 != rows.count) continue;
        __syncwarp();
        const uint32_t batch = i / SUM_ROWS, in_batch = lane / 4, row = batch * SUM_ROWS + in_batch;
        const float v = __fmul_rn(add_lanes(sums[warp]), factor);
        if (pairs) {
            const float up = __shfl_down_sync(ALL_LANES, v, 16);
            if (lane < 16 && lane % 4 == 0) units[warp * args.rows_a_warp + batch * 4 + in_batch] = gated(v, up);
        } else if (lane % 4 == 0 && row <= i) {
            put_sum(args, segment, first + row, v, key);
        }
        __syncwarp();
    }
    if (!pairs && args.best == nullptr) return;
    if (!pairs) {
        key = warp_largest(key);
        if (lane == 0) keys[warp] = key;
    }
    __syncthreads();
    if (pairs) {
        if (warp >= WARPS * args.rows_a_warp / WARP) return;
        emit(args.gated, 0, blockIdx.x * WARPS * args.rows_a_warp + threadIdx.x, m.rows, units[threadIdx.x]);
    } else if (warp == 0) {
        key = warp_largest(lane < WARPS ? keys[lane] : 0);
        if (lane == 0) atomicMax(args.best, key);
    }
}
