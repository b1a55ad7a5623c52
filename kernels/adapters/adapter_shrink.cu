// The sums A x of rows and their adapters, each multiplied by its adapter's scale. A block makes one sum at a time, of
// a row, or of up to ROWS neighbours that have the same adapters. What it needs beside x is in registers before its
// wait. Each thread adds every 256th quad of columns, lanes are added by halves and warps in their order: so neither
// company nor ROWS enter. Further blocks make the norm that the product reads, where that is not there yet.
//
// Which expert a pair has is known behind the wait alone, and pairs are many: there a warp makes a sum, in an order of
// its own.
#include "adapters/adapters.cuh"
#include "elementwise/rms_norm.cuh"
#include "experts/choice.cuh"
#include "quant/activation.cuh"

constexpr uint32_t THREADS = NORM_THREADS, WARPS = THREADS / WARP;
// Quads of columns whose weights a thread has in registers before the wait.
template <uint32_t ROWS>
constexpr uint32_t QUADS = ROWS == 1 ? NORM_QUADS : 1;

// A row of an adapter's first matrix.
struct DownRow {
    const uint8_t *values;  // null where there is none
    uint32_t type;
    uint32_t rank;  // rows of the matrix: with experts, how far apart theirs are
    float factor;
};

// What a warp of the block has found and brought near: the row of weights for the sum `number` of those with `entries`.
template <uint32_t ROWS>
struct Found {
    const AdapterEntry *entries;
    uint32_t number;
    DownRow down;
    float4 weights[QUADS<ROWS>];
};

template <uint32_t ROWS>
struct Shares {
    float sums[WARPS][ROWS];
    float squares[WARPS];  // of the row that a norm takes
};

// Sum `number` is of matrix number / ranks, and there of the rank that is left; with experts, of the first one.
__device__ __forceinline__ DownRow find_row(const AdapterArgs &args, const AdapterEntry *entries, uint32_t number) {
    const uint32_t rank = number % args.ranks;
    DownRow row = {};
    each_pairs(args, entries, args.matrices[number / args.ranks], [&](const LanePair &own) {
        const AdapterPair &pair = own.pair;
        const uint32_t owner = __ballot_sync(~0u, rank >= own.first && rank < own.end);
        if (owner == 0) return false;
        const size_t offset = (size_t)(rank - own.first) * args.cols * bytes_of_float(pair.down_type);
        const uint64_t values = reinterpret_cast<uint64_t>(pair.down) + offset;
        const int lane = __ffs(owner) - 1;
        row.values = reinterpret_cast<const uint8_t *>(__shfl_sync(~0u, values, lane));
        row.type = __shfl_sync(~0u, pair.down_type, lane);
        row.rank = __shfl_sync(~0u, pair.rank, lane);
        row.factor = __shfl_sync(~0u, __fmul_rn(pair.factor, own.scale), lane);
        return true;
    });
    return row;
}

__device__ __forceinline__ float4 load_floats(const DownRow &down, uint32_t quad) {
    return to_floats(down.type, load_quad(down.type, down.values, quad));
}

template <uint32_t ROWS>
__device__ __forceinline__ Found<ROWS> find(const AdapterArgs &args, const AdapterEntry *entries, uint32_t number) {
    Found<ROWS> found = {entries, number, find_row(args, entries, number)};
    uint4 bits[QUADS<ROWS>] = {};
#pragma unroll
    for (uint32_t i = 0; i < QUADS<ROWS>; i++) {
        const uint32_t quad = threadIdx.x + i * THREADS;
        if (args.cols % 4 == 0 && quad < args.cols / 4 && found.down.values != nullptr)
            bits[i] = load_quad(found.down.type, found.down.values, quad);
    }
    // Only when all are on their way the first is looked at.
#pragma unroll
    for (uint32_t i = 0; i < QUADS<ROWS>; i++) found.weights[i] = to_floats(found.down.type, bits[i]);
    return found;
}

__device__ __forceinline__ float add_quad(const float4 &w, const float4 &x, float sum) {
    return __fmaf_rn(w.w, x.w, __fmaf_rn(w.z, x.z, __fmaf_rn(w.y, x.y, __fmaf_rn(w.x, x.x, sum))));
}

// The first quads of a row of x that the thread adds, asked for before it is known whose row it is.
__device__ __forceinline__ void load_values(const AdapterArgs &args, const float *x, float4 (&values)[NORM_QUADS]) {
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * THREADS;
        const bool is_inside = args.cols % 4 == 0 && quad < args.cols / 4;
        values[i] = is_inside ? reinterpret_cast<const float4 *>(x)[quad] : make_float4(0, 0, 0, 0);
    }
}

// The thread's share of the products with `rows` rows of x; `values` are those of a single row.
template <uint32_t ROWS>
__device__ __forceinline__ void add_row(const AdapterArgs &args, const Found<ROWS> &found, const float *x,
    const float4 (&values)[NORM_QUADS], uint32_t rows, float (&sum)[ROWS]) {
    const DownRow &down = found.down;
    if (args.cols % 4 != 0) {
        for (uint32_t col = threadIdx.x; col < args.cols; col += THREADS) {
            const float w = to_float(down.type, load_bits(down.type, down.values, col));
            for (uint32_t n = 0; n < rows; n++) sum[n] = __fmaf_rn(w, x[(size_t)n * args.cols + col], sum[n]);
        }
        return;
    }
    const uint32_t quads = args.cols / 4;
    const auto add = [&](uint32_t quad, const float4 &w) {
#pragma unroll
        for (uint32_t n = 0; n < ROWS; n++) {
            if (quad < quads && n < rows)
                sum[n] = add_quad(w, reinterpret_cast<const float4 *>(x)[(size_t)n * quads + quad], sum[n]);
        }
    };
#pragma unroll
    for (uint32_t i = 0; i < QUADS<ROWS>; i++) {
        if (ROWS > 1) add(threadIdx.x + i * THREADS, found.weights[i]);
        else if (threadIdx.x + i * THREADS < quads) sum[0] = add_quad(found.weights[i], values[i], sum[0]);
    }
#pragma unroll 2
    for (uint32_t quad = threadIdx.x + QUADS<ROWS> * THREADS; quad < quads; quad += THREADS)
        add(quad, load_floats(down, quad));
}

// The same for a row that a norm takes: its values times the norm's weights, as `weigh_row` makes them, and the
// squares.
__device__ __forceinline__ void add_normed(const AdapterArgs &args, const Found<1> &found, const float *x,
    const float4 (&values)[NORM_QUADS], const float4 (&norm)[NORM_QUADS], float &sum, float &squares) {
    const uint32_t quads = args.cols / 4;
    const auto add = [&](const float4 &w, const float4 &value, const float4 &weight) {
        squares = add_squares(value, squares);
        sum = add_quad(w, weigh(value, weight), sum);
    };
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        if (threadIdx.x + i * THREADS < quads) add(found.weights[i], values[i], norm[i]);
    }
    const float4 *weights = reinterpret_cast<const float4 *>(args.norm);
    for (uint32_t quad = threadIdx.x + NORM_QUADS * THREADS; quad < quads; quad += THREADS)
        add(load_floats(found.down, quad), reinterpret_cast<const float4 *>(x)[quad], __ldg(weights + quad));
}

// Joins what the threads have, and writes the sums of `rows` rows; `factor` is of the row that the thread writes.
template <uint32_t ROWS>
__device__ __forceinline__ void put_sums(const AdapterArgs &args, const Found<ROWS> &found, uint32_t first,
    uint32_t rows, const float (&sum)[ROWS], float squares, float factor, Shares<ROWS> &shares) {
#pragma unroll
    for (uint32_t n = 0; n < ROWS; n++) {
        const float total = warp_sum(sum[n]);
        if (threadIdx.x % WARP == 0) shares.sums[threadIdx.x / WARP][n] = total;
    }
    if (ROWS == 1 && args.norm != nullptr) share_squares(squares, shares.squares);
    __syncthreads();
    if (const uint32_t n = threadIdx.x; n < rows) {
        float total = shares.sums[0][n];
#pragma unroll
        for (uint32_t warp = 1; warp < WARPS; warp++) total = __fadd_rn(total, shares.sums[warp][n]);
        if (ROWS == 1 && args.norm != nullptr) factor = norm_factor(shares.squares, args.cols, args.eps);
        total = __fmul_rn(total, factor);
        args.sums[(size_t)(first + n) * args.count * args.ranks + found.number] = __fmul_rn(total, found.down.factor);
    }
    __syncthreads();
}

// Blocks a row that make its norm for the product behind: each thread's quad, and the factor.
__device__ __forceinline__ uint32_t norm_blocks(const AdapterArgs &args) {
    return args.normed.factors != nullptr ? (args.cols / 4 + THREADS - 1) / THREADS + 1 : 0;
}

// Part `block` of that, as `rms_norm` makes it.
__device__ __forceinline__ void put_norm(const AdapterArgs &args, uint32_t row, uint32_t block, float *shares) {
    const uint32_t quads = args.cols / 4, own = block * THREADS + threadIdx.x;
    const float4 *x = reinterpret_cast<const float4 *>(args.x.x + (size_t)row * args.cols);
    const float4 none = make_float4(0, 0, 0, 0);
    if (block * THREADS < quads) {
        const float4 weight = own < quads ? __ldg(reinterpret_cast<const float4 *>(args.norm) + own) : none;
        await_dependencies();
        emit_quad<true>(args.normed, row, own, args.cols, own < quads, weigh(own < quads ? x[own] : none, weight));
        return;
    }
    await_dependencies();
    float sum = 0.0f;
    for (uint32_t start = threadIdx.x; start < quads; start += NORM_QUADS * THREADS) {
        float4 values[NORM_QUADS];
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++) {
            const uint32_t quad = start + i * THREADS;
            values[i] = quad < quads ? x[quad] : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++) sum = add_squares(values[i], sum);
    }
    share_squares(sum, shares);
    __syncthreads();
    if (threadIdx.x == 0) args.normed.factors[row] = norm_factor(shares, args.cols, args.eps);
}

template <uint32_t ROWS>
__device__ __forceinline__ void shrink(const AdapterArgs &args, const Shape &shape) {
    __shared__ Shares<ROWS> shares;
    launch_dependents();
    const uint32_t blocks = gridDim.x - (ROWS == 1 ? norm_blocks(args) : 0);
    if (blockIdx.x >= blocks) return put_norm(args, blockIdx.y, blockIdx.x - blocks, shares.squares);
    const uint32_t first = blockIdx.y * ROWS, end = min(first + ROWS, row_count(args, shape));
    // Which slot the row has may still be that of the step before: then this is found again.
    Found<ROWS> found = find<ROWS>(args, entries_of(args, first), blockIdx.x);
    float4 norm[QUADS<ROWS>] = {};
    if (ROWS == 1 && args.norm != nullptr) {
#pragma unroll
        for (uint32_t i = 0; i < QUADS<ROWS>; i++) {
            if (const uint32_t quad = threadIdx.x + i * THREADS; quad < args.cols / 4)
                norm[i] = __ldg(reinterpret_cast<const float4 *>(args.norm) + quad);
            // A launch that norms the row stands behind long ones: its weights are there before its wait ends.
            keep(norm[i]), keep(found.weights[i]);
        }
    }
    await_dependencies();
    for (uint32_t row = first; row < end;) {
        const float *x = args.x.x + (size_t)row * args.cols;
        float4 values[NORM_QUADS];
        if (ROWS == 1) load_values(args, x, values);
        const AdapterEntry *entries = entries_of(args, row);
        const uint32_t alike = rows_alike<ROWS>(args, row, end, entries);
        for (uint32_t number = blockIdx.x; number < args.count * args.ranks; number += blocks) {
            if (found.entries != entries || found.number != number) found = find<ROWS>(args, entries, number);
            if (found.down.values == nullptr) continue;
            float sum[ROWS] = {}, squares = 0.0f, factor = 1.0f;
            if (args.x.factors != nullptr && threadIdx.x < alike) factor = args.x.factors[row + threadIdx.x];
            const auto multiply = [&] { add_row<ROWS>(args, found, x, values, alike, sum); };
            if constexpr (ROWS == 1) {
                if (args.norm == nullptr) multiply();
                else add_normed(args, found, x, values, norm, sum[0], squares);
            } else {
                multiply();
            }
            put_sums<ROWS>(args, found, row, alike, sum, squares, factor, shares);
        }
        row += alike;
    }
}

// The product of a row of x with a row of weights, in every lane of the warp that makes it: a lane adds every 32nd
// quad, of which several are on their way at once.
__device__ __forceinline__ float dot(const DownRow &down, const float *x, uint32_t cols) {
    constexpr uint32_t AHEAD = 8;
    const uint32_t lane = threadIdx.x % WARP, quads = cols / 4;
    float sum = 0.0f;
    if (cols % 4 != 0) {
        for (uint32_t col = lane; col < cols; col += WARP)
            sum = __fmaf_rn(to_float(down.type, load_bits(down.type, down.values, col)), x[col], sum);
        return warp_sum(sum);
    }
#pragma unroll 1
    for (uint32_t start = lane; start < quads; start += AHEAD * WARP) {
        uint4 bits[AHEAD];
        float4 values[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (start + i * WARP >= quads) continue;
            bits[i] = load_quad(down.type, down.values, start + i * WARP);
            values[i] = reinterpret_cast<const float4 *>(x)[start + i * WARP];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (start + i * WARP < quads) sum = add_quad(to_floats(down.type, bits[i]), values[i], sum);
        }
    }
    return warp_sum(sum);
}

// The sums of a pair of a row and an expert.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    adapter_shrink_experts(const __grid_constant__ ExpertAdapterArgs args, Shape) {
    launch_dependents();
    const AdapterArgs &own = args.own;
    const uint32_t pair = blockIdx.y, row = pair / args.chosen, x_row = args.on_pairs ? pair : row;
    const uint32_t sums = own.count * own.ranks, number = min(blockIdx.x * WARPS + threadIdx.x / WARP, sums - 1);
    const AdapterEntry *early = entries_of(own, row);
    DownRow down = find_row(own, early, number);
    await_dependencies();
    const uint32_t expert = expert_of(args.choice, args.chosen, pair);
    if (const AdapterEntry *entries = entries_of(own, row); entries != early) down = find_row(own, entries, number);
    if (down.values == nullptr) return;
    down.values += (size_t)expert * down.rank * own.cols * bytes_of_float(down.type);
    float sum = dot(down, own.x.x + (size_t)x_row * own.cols, own.cols);
    if (own.x.factors != nullptr) sum = __fmul_rn(sum, own.x.factors[x_row]);
    if (threadIdx.x % WARP == 0) own.sums[(size_t)pair * sums + number] = __fmul_rn(sum, down.factor);
}

#define ADAPTER_SHRINK(family, file, name, ROWS)                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 1 ? STEP_BLOCKS : 2) \
        name(const __grid_constant__ AdapterArgs args, Shape shape) {                  \
        shrink<ROWS>(args, shape);                                                     \
    }
#include "kernels.def"
