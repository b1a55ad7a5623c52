// B times the sums that `adapter_shrink` has left, for rows and their adapters. A thread has a column of the outputs,
// of a row or of up to ROWS neighbours that have the same adapters, and adds the columns of B in the order of adapters
// and ranks: so neither company nor ROWS enter. Of a row without adapters, what the product adds to is 0.
#include "adapters/adapters.cuh"

// Outputs of a tile; ranks whose weights a thread has in registers, before the block's wait for the first of them, and
// how many of these it asks for at a time.
constexpr uint32_t THREADS = 256, RUN = 16;
template <uint32_t ROWS>
constexpr uint32_t RANKS = ROWS == 1 ? 64 : RUN;

// A row of an adapter's second matrix, which lies turned.
struct UpRow {
    const uint8_t *values;
    uint32_t type;
};

// Some rows from a rank on of what the adapters of a row have for a matrix.
template <uint32_t MOST>
struct Window {
    UpRow rows[MOST];
    uint32_t total;  // ranks of all adapters
};

// The thread's weights in such a window.
template <uint32_t MOST>
struct Column {
    const AdapterEntry *entries;
    uint32_t start;
    uint32_t bits[MOST];  // as they lie in memory, but for the first run, which are floats
};

// Lists the rows from `start` on; every thread of the block comes here.
template <uint32_t MOST>
__device__ __forceinline__ void list_rows(const AdapterArgs &args, const AdapterEntry *entries,
    const AdaptedMatrix &matrix, uint32_t start, Window<MOST> &window) {
    __syncthreads();
    if (threadIdx.x < WARP) {
        uint32_t total = 0;
        each_pairs(args, entries, matrix, [&](const LanePair &own) {
            const size_t bytes = matrix.width * bytes_of_float(own.pair.up_type);
            for (uint32_t rank = max(own.first, start); rank < min(own.end, start + MOST); rank++)
                window.rows[rank - start] = UpRow{own.pair.up + (rank - own.first) * bytes, own.pair.up_type};
            total = __shfl_sync(~0u, own.end, WARP - 1);
            return false;
        });
        if (threadIdx.x == 0) window.total = total;
    }
    __syncthreads();
}

// Brings the thread's weights of a window to registers.
template <uint32_t MOST>
__device__ __forceinline__ void load_column(const AdapterArgs &args, const AdapterEntry *entries,
    const AdaptedMatrix &matrix, uint32_t col, uint32_t start, Window<MOST> &window, Column<MOST> &column) {
    list_rows(args, entries, matrix, start, window);
    column.entries = entries, column.start = start;
    const uint32_t count = min(window.total - min(start, window.total), MOST);
#pragma unroll
    for (uint32_t run = 0; run < MOST; run += RUN) {
        if (run >= count) break;
#pragma unroll
        for (uint32_t k = run; k < run + RUN; k++) {
            if (k < count && col < matrix.width)
                column.bits[k] = load_bits(window.rows[k].type, window.rows[k].values, col);
        }
    }
    // All are on their way. The first run is looked at here already: of one adapter there is no more as a rule.
#pragma unroll
    for (uint32_t k = 0; k < RUN; k++)
        if (k < count) column.bits[k] = __float_as_uint(to_float(window.rows[k].type, column.bits[k]));
}

// Brings the sums of the window's ranks to `shared`, of `rows` rows that lie `stride` apart.
template <uint32_t MOST>
__device__ __forceinline__ void load_sums(const Window<MOST> &window, uint32_t start, const float *sums, size_t stride,
    uint32_t rows, float (*shared)[MOST]) {
    const uint32_t count = min(window.total - min(start, window.total), MOST);
    for (uint32_t i = threadIdx.x; i < rows * MOST; i += THREADS) {
        if (i % MOST < count) shared[i / MOST][i % MOST] = __ldcg(sums + i / MOST * stride + start + i % MOST);
    }
}

// Adds the window's ranks to the column of `rows` rows.
template <uint32_t ROWS, uint32_t MOST>
__device__ __forceinline__ void add_column(const Column<MOST> &column, const Window<MOST> &window, uint32_t rows,
    const float (*shared)[MOST], float (&sum)[ROWS]) {
    const uint32_t count = min(window.total - min(column.start, window.total), MOST);
    __syncthreads();
#pragma unroll
    for (uint32_t run = 0; run < MOST; run += RUN) {
        if (run >= count) break;
#pragma unroll
        for (uint32_t k = run; k < run + RUN; k++) {
            if (k >= count) break;
            const float w = k < RUN ? __uint_as_float(column.bits[k]) : to_float(window.rows[k].type, column.bits[k]);
#pragma unroll
            for (uint32_t n = 0; n < ROWS; n++) {
                if (ROWS == 1 || n < rows) sum[n] = __fmaf_rn(shared[n][k], w, sum[n]);
            }
        }
    }
    __syncthreads();
}

// The matrix of a tile.
__device__ __forceinline__ uint32_t matrix_of(const AdapterArgs &args, uint32_t tile) {
    uint32_t own = 0;
    for (uint32_t m = 1; m < args.count && tile >= args.matrices[m].first_tile; m++) own = m;
    return own;
}

template <uint32_t ROWS>
__device__ __forceinline__ void expand(const AdapterArgs &args, const Shape &shape) {
    constexpr uint32_t MOST = RANKS<ROWS>;
    __shared__ float shared[ROWS][MOST];
    __shared__ Window<MOST> window;
    launch_dependents();
    const uint32_t first = blockIdx.y * ROWS, end = min(first + ROWS, row_count(args, shape));
    const uint32_t own = matrix_of(args, blockIdx.x);
    const AdaptedMatrix &matrix = args.matrices[own];
    const uint32_t col = (blockIdx.x - matrix.first_tile) * THREADS + threadIdx.x, width = matrix.width;
    // Which slot the row has may still be that of the step before: then this is loaded again.
    Column<MOST> column;
    load_column(args, entries_of(args, first), matrix, col, 0, window, column);
    await_dependencies();
    const size_t stride = (size_t)args.count * args.ranks;
    for (uint32_t row = first; row < end;) {
        const float *sums = args.sums + row * stride + own * args.ranks;
        // Of a single row they are asked for before it is known whose row it is.
        if (ROWS == 1) load_sums(window, 0, sums, stride, 1, shared);
        const AdapterEntry *entries = entries_of(args, row);
        const uint32_t alike = rows_alike<ROWS>(args, row, end, entries);
        float *out = matrix.out + (size_t)row * width + col, sum[ROWS] = {}, before[ROWS];
#pragma unroll
        for (uint32_t n = 0; n < ROWS; n++)
            before[n] = matrix.adds != 0.0f && n < alike && col < width ? out[(size_t)n * width] : 0.0f;
        for (uint32_t start = 0; start == 0 || start < window.total; start += MOST) {
            const bool is_other = column.entries != entries || column.start != start;
            if (is_other) load_column(args, entries, matrix, col, start, window, column);
            if (ROWS > 1 || is_other) load_sums(window, start, sums, stride, alike, shared);
            add_column<ROWS>(column, window, alike, shared, sum);
        }
        // A row without adapters keeps what it is added to.
        const bool is_kept = matrix.adds != 0.0f && window.total == 0;
#pragma unroll
        for (uint32_t n = 0; n < ROWS; n++) {
            if (n < alike && col < width && !is_kept)
                out[(size_t)n * width] = matrix.adds != 0.0f ? __fmaf_rn(matrix.adds, sum[n], before[n]) : sum[n];
        }
        row += alike;
    }
}

#define ADAPTER_EXPAND(family, file, name, ROWS)                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)          \
        name(const __grid_constant__ AdapterArgs args, Shape shape) { \
        expand<ROWS>(args, shape);                                    \
    }
#include "kernels.def"
