// B times the sums that `adapter_shrink` has left, for rows and their adapters. A block has a tile of the outputs of a
// row, or of up to ROWS neighbours that have the same adapters. Each of its warps takes every eighth rank, counted
// through all adapters, in order, for all columns of the tile, and what the warps have is added in their order: so
// neither company nor ROWS enter. Of a row without adapters, what the product adds to is 0.
//
// A step waits for this, so the code is short, and what does not come from the step is in registers before the wait.
#include "adapters/adapters.cuh"
#include "experts/choice.cuh"

// Columns of a tile, a quad a lane; ranks of a warp whose weights are in registers at a time, and those of a block.
constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP, TILE = 4 * WARP, OWN = 8, WINDOW = OWN * WARPS;

// A row of an adapter's second matrix, which lies turned: the columns that the product has of it.
struct UpRow {
    const uint8_t *values;  // with experts, those of the first one
    uint32_t type;
    uint32_t rank;  // rows of the matrix: with experts, how far apart theirs are
};

// Which columns of an adapter's second matrix belong to a product: of its rows of `width` elements those from `first`
// on.
struct Columns {
    uint32_t width, first;
};

template <uint32_t ROWS>
struct Storage {
    float shares[ROWS][WARPS][TILE];  // what the warps have of rows
    UpRow rows[WINDOW];
    uint32_t total;  // ranks of all adapters
};

// A lane's quads of WINDOW rows of weights, from row `start` of those of all adapters on.
struct Weights {
    const AdapterEntry *entries;
    uint32_t start, count;  // rows that there are
    float4 quads[OWN];
};

__device__ __forceinline__ uint32_t rank_of(uint32_t i) { return i * WARPS + threadIdx.x / WARP; }

// Lists the rows from `start` on; every thread of the block comes here.
template <uint32_t ROWS>
__device__ __forceinline__ void list_rows(const AdapterArgs &args, const AdapterEntry *entries,
    const AdaptedMatrix &matrix, const Columns &columns, uint32_t start, Storage<ROWS> &space) {
    __syncthreads();
    if (threadIdx.x < WARP) {
        uint32_t total = 0;
        each_pairs(args, entries, matrix, [&](const LanePair &own) {
            const AdapterPair &pair = own.pair;
            const size_t bytes = bytes_of_float(pair.up_type);
            for (uint32_t rank = max(own.first, start); rank < min(own.end, start + WINDOW); rank++) {
                const size_t at = (size_t)(rank - own.first) * columns.width + columns.first;
                space.rows[rank - start] = UpRow{pair.up + at * bytes, pair.up_type, pair.rank};
            }
            total = __shfl_sync(~0u, own.end, WARP - 1);
            return false;
        });
        if (threadIdx.x == 0) space.total = total;
    }
    __syncthreads();
}

// What `load_quad` gives, of a row that need not be aligned and has `cols` columns, from `col` on.
__device__ __forceinline__ uint4 gather_quad(uint32_t type, const uint8_t *values, uint32_t col, uint32_t cols) {
    uint32_t v[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (col + i < cols) v[i] = load_bits(type, values, col + i);
    return type == F32 ? make_uint4(v[0], v[1], v[2], v[3]) : make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, 0, 0);
}

// Brings the lane's weights of the rows that are listed to registers, with experts those of `expert`.
template <uint32_t ROWS>
__device__ __forceinline__ void load_listed(const AdapterEntry *entries, const AdaptedMatrix &matrix,
    const Columns &columns, uint32_t expert, uint32_t col, uint32_t start, const Storage<ROWS> &space,
    Weights &weights) {
    const uint32_t count = min(space.total - min(start, space.total), WINDOW);
    weights.entries = entries, weights.start = start, weights.count = count;
    const bool is_aligned = (matrix.width | columns.width | columns.first) % 4 == 0;
    uint4 bits[OWN] = {};
    const auto values_of = [&](const UpRow &row) {
        return row.values + (size_t)expert * row.rank * columns.width * bytes_of_float(row.type);
    };
    const uint32_t own_count = col < matrix.width ? count : 0;
    if (is_aligned) {
#pragma unroll
        for (uint32_t i = 0; i < OWN; i++) {
            if (rank_of(i) >= own_count) continue;
            const UpRow &row = space.rows[rank_of(i)];
            bits[i] = load_quad(row.type, values_of(row), col / 4);
        }
    } else {
        // Rare, so it is short: each takes the last place, and those before move up.
#pragma unroll 1
        for (uint32_t i = 0; i < OWN; i++) {
#pragma unroll
            for (uint32_t j = 1; j < OWN; j++) bits[j - 1] = bits[j];
            bits[OWN - 1] = make_uint4(0, 0, 0, 0);
            if (rank_of(i) >= own_count) continue;
            const UpRow &row = space.rows[rank_of(i)];
            bits[OWN - 1] = gather_quad(row.type, values_of(row), col, matrix.width);
        }
    }
    // Only when all are on their way the first is looked at.
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        const uint32_t k = rank_of(i);
        weights.quads[i] = to_floats(k < count ? space.rows[k].type : F32, bits[i]);
    }
}

// Lists the rows from `start` on, and brings the lane's weights of them to registers.
template <uint32_t ROWS>
__device__ __forceinline__ void load_weights(const AdapterArgs &args, const AdapterEntry *entries,
    const AdaptedMatrix &matrix, uint32_t col, uint32_t start, Storage<ROWS> &space, Weights &weights) {
    const Columns columns{matrix.width, 0};
    list_rows(args, entries, matrix, columns, start, space);
    load_listed(entries, matrix, columns, 0, col, start, space, weights);
}

// The warp's sums of a row, of which there are `ranks`, asked for before it is known how many count.
__device__ __forceinline__ void load_sums(const float *sums, uint32_t start, uint32_t ranks, float (&values)[OWN]) {
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++)
        values[i] = start + rank_of(i) < ranks ? __ldcg(sums + start + rank_of(i)) : 0.0f;
}

// Adds the window's rows of weights times the row's sums.
__device__ __forceinline__ void add_rows(const Weights &weights, const float (&values)[OWN], float4 &sum) {
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        if (i * WARPS >= weights.count) break;
        const float4 &w = weights.quads[i];
        const float v = rank_of(i) < weights.count ? values[i] : 0.0f;
        sum.x = __fmaf_rn(v, w.x, sum.x), sum.y = __fmaf_rn(v, w.y, sum.y);
        sum.z = __fmaf_rn(v, w.z, sum.z), sum.w = __fmaf_rn(v, w.w, sum.w);
    }
}

// What all warps have for a column of a row.
template <uint32_t ROWS>
__device__ __forceinline__ float add_shares(const Storage<ROWS> &space, uint32_t row, uint32_t col) {
    float total = space.shares[row][0][col];
#pragma unroll
    for (uint32_t warp = 1; warp < WARPS; warp++) total = __fadd_rn(total, space.shares[row][warp][col]);
    return total;
}

// The matrix of a tile.
__device__ __forceinline__ uint32_t matrix_of(const AdapterArgs &args, uint32_t tile) {
    uint32_t own = 0;
    for (uint32_t m = 1; m < args.count && tile >= args.matrices[m].first_tile; m++) own = m;
    return own;
}

template <uint32_t ROWS>
__device__ __forceinline__ void expand(const AdapterArgs &args, const Shape &shape) {
    __shared__ __align__(16) Storage<ROWS> space;
    launch_dependents();
    const uint32_t first = blockIdx.y * ROWS, end = min(first + ROWS, row_count(args, shape));
    const uint32_t own = matrix_of(args, blockIdx.x), lane = threadIdx.x % WARP;
    const AdaptedMatrix &matrix = args.matrices[own];
    const uint32_t tile = (blockIdx.x - matrix.first_tile) * TILE, col = tile + 4 * lane, width = matrix.width;
    // Which slot the row has may still be that of the step before: then this is loaded again.
    Weights weights;
    load_weights(args, entries_of(args, first), matrix, col, 0, space, weights);
    await_dependencies();
    const size_t stride = (size_t)args.count * args.ranks;
    const bool adds = matrix.adds != 0.0f;
    for (uint32_t row = first; row < end;) {
        const float *sums = args.sums + row * stride + own * args.ranks;
        float *out = matrix.out + (size_t)row * width + tile;
        // Of a single row all is asked for before it is known whose row it is.
        float values[OWN], before = 0.0f;
        if (ROWS == 1) {
            load_sums(sums, 0, args.ranks, values);
            if (adds && threadIdx.x < TILE && tile + threadIdx.x < width) before = out[threadIdx.x];
        }
        const AdapterEntry *entries = entries_of(args, row);
        const uint32_t alike = rows_alike<ROWS>(args, row, end, entries);
        float4 sum[ROWS] = {};
        for (uint32_t start = 0; start == 0 || start < space.total; start += WINDOW) {
            if (weights.entries != entries || weights.start != start)
                load_weights(args, entries, matrix, col, start, space, weights);
#pragma unroll
            for (uint32_t n = 0; n < ROWS; n++) {
                if (n >= alike) break;
                if (ROWS > 1 || start > 0) load_sums(sums + n * stride, start, args.ranks, values);
                add_rows(weights, values, sum[n]);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < ROWS; n++)
            if (n < alike) *reinterpret_cast<float4 *>(space.shares[n][threadIdx.x / WARP] + 4 * lane) = sum[n];
        __syncthreads();
        // A row without adapters keeps what it is added to.
        const bool is_kept = adds && space.total == 0;
        for (uint32_t i = threadIdx.x; i < alike * TILE && !is_kept; i += THREADS) {
            const uint32_t n = i / TILE, at = i % TILE;
            if (tile + at >= width) continue;
            const float total = add_shares(space, n, at);
            float *to = out + (size_t)n * width + at;
            if (ROWS > 1 && adds) before = *to;
            *to = adds ? __fmaf_rn(matrix.adds, total, before) : total;
        }
        row += alike;
        if (row < end) __syncthreads();
    }
}

// The outputs of a pair of a row and an expert, which the product adds to its own.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    adapter_expand_experts(const __grid_constant__ ExpertAdapterArgs args, Shape) {
    __shared__ __align__(16) Storage<1> space;
    launch_dependents();
    const AdapterArgs &all = args.own;
    const uint32_t pair = blockIdx.y, own = matrix_of(all, blockIdx.x), lane = threadIdx.x % WARP;
    const AdaptedMatrix &matrix = all.matrices[own];
    const AdaptedTable &table = args.tables[own];
    const uint32_t tile = (blockIdx.x - matrix.first_tile) * TILE, col = tile + 4 * lane, width = matrix.width;
    const Columns columns{table.each, table.first};
    const AdapterEntry *entries = entries_of(all, pair / args.chosen), *early = entries;
    list_rows(all, entries, matrix, columns, 0, space);
    await_dependencies();
    const uint32_t expert = expert_of(args.choice, args.chosen, pair);
    const float *sums = all.sums + ((size_t)pair * all.count + own) * all.ranks;
    entries = entries_of(all, pair / args.chosen);
    float4 sum = {};
    for (uint32_t start = 0; start == 0 || start < space.total; start += WINDOW) {
        Weights weights;
        float values[OWN];
        load_sums(sums, start, all.ranks, values);
        if (start > 0 || entries != early) list_rows(all, entries, matrix, columns, start, space);
        load_listed(entries, matrix, columns, expert, col, start, space, weights);
        add_rows(weights, values, sum);
    }
    *reinterpret_cast<float4 *>(space.shares[0][threadIdx.x / WARP] + 4 * lane) = sum;
    __syncthreads();
    const uint32_t at = threadIdx.x;
    if (at >= TILE || tile + at >= width) return;
    const float total = add_shares(space, 0, at);
    matrix.out[(size_t)pair * width + tile + at] =
        table.scale != nullptr ? __fmul_rn(total, table.scale[expert]) : total;
}

#define ADAPTER_EXPAND(family, file, name, ROWS)                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 1 ? STEP_BLOCKS : 2) \
        name(const __grid_constant__ AdapterArgs args, Shape shape) {                  \
        expand<ROWS>(args, shape);                                                     \
    }
#include "kernels.def"
