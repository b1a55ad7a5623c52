// The sums A x of rows and their adapters, each multiplied by its adapter's scale. A block makes one sum at a time, of
// a row, or of up to ROWS neighbours that have the same adapters. Each thread adds every 128th run of eight columns,
// lanes are added by halves and warps in their order: so neither company nor ROWS enter.
#include "adapters/adapters.cuh"

constexpr uint32_t THREADS = 128, WARPS = THREADS / WARP, RUN = 8;

// A row of an adapter's first matrix.
struct DownRow {
    const uint8_t *values;
    uint32_t type;
    uint32_t place;  // of its sums among those of a row
    float factor;
};

// Row `number` of all that these adapters have for the matrices of the launch; false where there are fewer.
__device__ __forceinline__ bool find_row(
    const AdapterArgs &args, const AdapterEntry *entries, uint32_t number, DownRow &found) {
    bool is_found = false;
    for (uint32_t m = 0; m < args.count && !is_found; m++) {
        each_pair(args, entries, args.matrices[m], [&](const AdapterPair &pair, float scale, uint32_t place) {
            is_found = number < pair.rank;
            if (is_found) {
                const size_t row_bytes = args.cols * bytes_of_float(pair.down_type);
                found = DownRow{pair.down + number * row_bytes, pair.down_type, m * args.ranks + place + number,
                    __fmul_rn(pair.factor, scale)};
            } else {
                number -= pair.rank;
            }
            return !is_found;
        });
    }
    return is_found;
}

// The thread's share of the products of a row of weights with `rows` rows of x.
template <uint32_t TYPE, uint32_t ROWS>
__device__ __forceinline__ void add_row(
    const uint8_t *values, const float *x, uint32_t cols, uint32_t rows, float (&sum)[ROWS]) {
    if (cols % RUN == 0) {
        constexpr uint32_t SIZE = TYPE == F32 ? 4 : 2;
#pragma unroll 4
        for (uint32_t col = threadIdx.x * RUN; col < cols; col += THREADS * RUN) {
            float w[RUN];
            load_floats<TYPE>(values + (size_t)col * SIZE, w);
#pragma unroll
            for (uint32_t n = 0; n < ROWS; n++) {
                if (ROWS > 1 && n >= rows) break;
                const float4 *own = reinterpret_cast<const float4 *>(x + (size_t)n * cols + col);
                sum[n] = add_floats(w, own[0], own[1], sum[n]);
            }
        }
        return;
    }
    for (uint32_t col = threadIdx.x; col < cols; col += THREADS) {
        const float w = load_float<TYPE>(values, col);
#pragma unroll
        for (uint32_t n = 0; n < ROWS; n++) {
            if (ROWS > 1 && n >= rows) break;
            sum[n] = __fmaf_rn(w, x[(size_t)n * cols + col], sum[n]);
        }
    }
}

// The sums of `rows` rows with a row of weights.
template <uint32_t ROWS>
__device__ __forceinline__ void put_sums(
    const AdapterArgs &args, const DownRow &down, uint32_t first, uint32_t rows, float (*shares)[ROWS]) {
    float sum[ROWS] = {};
    by_float_type(down.type, [&](auto type) {
        add_row<decltype(type)::value, ROWS>(down.values, args.x.x + (size_t)first * args.cols, args.cols, rows, sum);
    });
#pragma unroll
    for (uint32_t n = 0; n < ROWS; n++) {
        const float total = warp_sum(sum[n]);
        if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP][n] = total;
    }
    __syncthreads();
    if (const uint32_t n = threadIdx.x; n < rows) {
        float total = shares[0][n];
#pragma unroll
        for (uint32_t warp = 1; warp < WARPS; warp++) total = __fadd_rn(total, shares[warp][n]);
        if (args.x.factors != nullptr) total = __fmul_rn(total, args.x.factors[first + n]);
        args.sums[(size_t)(first + n) * args.count * args.ranks + down.place] = __fmul_rn(total, down.factor);
    }
    __syncthreads();
}

template <uint32_t ROWS>
__device__ __forceinline__ void shrink(const AdapterArgs &args, const Shape &shape) {
    __shared__ float shares[WARPS][ROWS];
    launch_dependents();
    const uint32_t first = blockIdx.y * ROWS, end = min(first + ROWS, row_count(args, shape));
    DownRow down;
    // What the block reads first is on its way while the kernels before are at work.
    if (find_row(args, entries_of(args, first), blockIdx.x, down)) {
        const uint32_t bytes = args.cols * (uint32_t)bytes_of_float(down.type);
        for (uint32_t at = threadIdx.x * 32; at < bytes; at += THREADS * 32) prefetch(down.values + at);
    }
    await_dependencies();
    for (uint32_t row = first; row < end;) {
        const AdapterEntry *entries = entries_of(args, row);
        const uint32_t alike = rows_alike<ROWS>(args, row, end, entries);
        for (uint32_t number = blockIdx.x; find_row(args, entries, number, down); number += gridDim.x)
            put_sums<ROWS>(args, down, row, alike, shares);
        row += alike;
    }
}

#define ADAPTER_SHRINK(family, file, name, ROWS)                      \
    extern "C" __global__ void __launch_bounds__(THREADS)             \
        name(const __grid_constant__ AdapterArgs args, Shape shape) { \
        shrink<ROWS>(args, shape);                                    \
    }
#include "kernels.def"
