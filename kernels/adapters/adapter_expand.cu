// B times the sums that `adapter_shrink` has left, for rows and their adapters. A thread has a column of the outputs,
// of a row or of up to ROWS neighbours that have the same adapters, and adds the columns of B in the order of adapters
// and ranks: so neither company nor ROWS enter. Of a row without adapters, what the product adds to is 0.
#include "adapters/adapters.cuh"

// Outputs of a tile, and ranks whose weights a thread has in registers.
constexpr uint32_t THREADS = 256, RANKS = 16;
// Most ranks of an adapter that are brought near before the wait.
constexpr uint32_t EARLY_RANKS = 64;

// Adds what a pair makes of the sums of `rows` rows, which lie `stride` apart, to a column of theirs; every thread of
// the block comes here.
template <uint32_t TYPE, uint32_t ROWS>
__device__ __forceinline__ void add_pair(const AdapterPair &pair, uint32_t width, uint32_t col, const float *sums,
    size_t stride, uint32_t rows, float (*shared)[RANKS], float (&sum)[ROWS]) {
    for (uint32_t start = 0; start < pair.rank; start += RANKS) {
        const uint32_t count = min(RANKS, pair.rank - start);
        float w[RANKS];
#pragma unroll
        for (uint32_t k = 0; k < RANKS; k++)
            w[k] = k < count && col < width ? load_float<TYPE>(pair.up, (size_t)(start + k) * width + col) : 0.0f;
        const uint32_t row = threadIdx.x / RANKS, rank = threadIdx.x % RANKS;
        if (row < rows && rank < count) shared[row][rank] = __ldcg(sums + row * stride + start + rank);
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < RANKS; k++) {
            if (k >= count) break;
#pragma unroll
            for (uint32_t n = 0; n < ROWS; n++) {
                if (ROWS > 1 && n >= rows) break;
                sum[n] = __fmaf_rn(shared[n][k], w[k], sum[n]);
            }
        }
        __syncthreads();
    }
}

// The matrix of a tile.
__device__ __forceinline__ uint32_t matrix_of(const AdapterArgs &args, uint32_t tile) {
    uint32_t own = 0;
    for (uint32_t m = 1; m < args.count && tile >= args.matrices[m].first_tile; m++) own = m;
    return own;
}

// Brings a column of what a row's adapters have for a matrix near.
__device__ __forceinline__ void prefetch_column(
    const AdapterArgs &args, uint32_t row, const AdaptedMatrix &matrix, uint32_t col) {
    each_pair(args, entries_of(args, row), matrix, [&](const AdapterPair &pair, float, uint32_t) {
        const size_t size = bytes_of_float(pair.up_type);
        const uint32_t ranks = min(pair.rank, EARLY_RANKS);
        // A thread of each 32 bytes.
        if (col < matrix.width && col % (32 / size) == 0) {
            for (uint32_t k = 0; k < ranks; k++) prefetch(pair.up + ((size_t)k * matrix.width + col) * size);
        }
        return true;
    });
}

template <uint32_t ROWS>
__device__ __forceinline__ void expand(const AdapterArgs &args, const Shape &shape) {
    __shared__ float shared[ROWS][RANKS];
    static_assert(ROWS * RANKS <= THREADS, "a thread brings a sum");
    launch_dependents();
    const uint32_t first = blockIdx.y * ROWS, end = min(first + ROWS, row_count(args, shape));
    const uint32_t own = matrix_of(args, blockIdx.x);
    const AdaptedMatrix &matrix = args.matrices[own];
    const uint32_t col = (blockIdx.x - matrix.first_tile) * THREADS + threadIdx.x, width = matrix.width;
    prefetch_column(args, first, matrix, col);
    await_dependencies();
    const size_t stride = (size_t)args.count * args.ranks;
    for (uint32_t row = first; row < end;) {
        const AdapterEntry *entries = entries_of(args, row);
        const uint32_t alike = rows_alike<ROWS>(args, row, end, entries);
        const float *sums = args.sums + row * stride + own * args.ranks;
        float sum[ROWS] = {};
        each_pair(args, entries, matrix, [&](const AdapterPair &pair, float, uint32_t place) {
            by_float_type(pair.up_type, [&](auto type) {
                add_pair<decltype(type)::value, ROWS>(pair, width, col, sums + place, stride, alike, shared, sum);
            });
            return true;
        });
        // A row without adapters keeps what it is added to.
        const bool is_kept = matrix.adds != 0.0f && entries->pairs == nullptr;
        if (col < width && !is_kept) {
#pragma unroll
            for (uint32_t n = 0; n < ROWS; n++) {
                if (n >= alike) break;
                float *out = matrix.out + (size_t)(row + n) * width + col;
                *out = matrix.adds != 0.0f ? __fmaf_rn(matrix.adds, sum[n], *out) : sum[n];
            }
        }
        row += alike;
    }
}

#define ADAPTER_EXPAND(family, file, name, ROWS)                      \
    extern "C" __global__ void __launch_bounds__(THREADS)             \
        name(const __grid_constant__ AdapterArgs args, Shape shape) { \
        expand<ROWS>(args, shape);                                    \
    }
#include "kernels.def"
