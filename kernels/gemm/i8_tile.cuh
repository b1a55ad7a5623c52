// A tile of 16 weight rows times up to eight rows of x, both in shared memory, by eight warps on tensor cores. A warp
// multiplies four neighbouring groups of every slice, in sums of their own; at the end of a tile these are added, then
// those of the warps: the order of `gemm_dp4a.cu` and `gemv_b1.cu`, where a lane stands for what is a group of every
// slice here, so all give the same bits.
#pragma once
#include "gemm/segments.cuh"
#include "ptx/mbarrier.cuh"
#include "quant/activation.cuh"
#include "quant/mma_operands.cuh"

constexpr uint32_t WARPS = 8, TILE_ROWS = 16, TILE_COLUMNS = 8;
// Groups of a slice that a warp multiplies; rows of x have a multiple of them.
constexpr uint32_t GROUPS = SLICE_GROUPS / WARPS;
// Distances of columns of sums and, beyond their bytes, of activations, which keep banks apart.
constexpr uint32_t SUM_STRIDE = 20, PAD = 16;
constexpr uint32_t SUMS = TILE_COLUMNS * SUM_STRIDE;

struct Tile {
    uint32_t segment, row;
};

__device__ __forceinline__ uint32_t tiles_of(const Segment &segment) {
    return (segment.matrix.rows + TILE_ROWS - 1) / TILE_ROWS;
}

// Of products that stand one behind the other.
__device__ __forceinline__ Tile tile_of(const TensorArgs &args, uint32_t tile) {
    uint32_t segment = 0;
    while (segment + 1 < args.count && tile >= tiles_of(args.segments[segment]))
        tile -= tiles_of(args.segments[segment++]);
    return Tile{segment, tile * TILE_ROWS};
}

// Where the rows of x lie in shared memory, as offsets: codes as they are, behind them of each group its scale and its
// sum as floats.
struct RowsOfX {
    uint32_t batch, code_stride, factor_stride, factors, end;

    __device__ __forceinline__ RowsOfX(const TensorArgs &args, const Shape &shape) {
        batch = args.on_outputs ? shape.outputs : shape.rows;
        code_stride = (args.cols + 127) / 128 * 128 + PAD, factor_stride = (args.cols / 4 + 127) / 128 * 128 + PAD;
        factors = batch * code_stride, end = (factors + batch * factor_stride + 127) / 128 * 128;
    }
    RowsOfX() = default;
};

// What a warp has of a slice of 16 rows: one row of factors for each half of the rows, and the codes of two groups at a
// time.
template <int TYPE>
struct Slice {
    const uint8_t *rows[2];  // the lane's
    uint32_t codes, upper;   // what it loads of matrices
    uint32_t high, scales;   // offsets in a row
    BlockFactors blocks[2];

    __device__ __forceinline__ Slice(const uint8_t *stage, uint32_t stride, uint32_t groups, uint32_t index) {
        const uint32_t lane = threadIdx.x % WARP;
        rows[0] = stage + lane / 4 * stride, rows[1] = rows[0] + 8 * stride;
        codes = shared_address(stage) + lane % 16 * stride + (index + lane / 16) * 16, upper = codes + 16 * groups;
        high = code_bytes(TYPE) * groups + high_bytes(TYPE) * index;
        scales = (code_bytes(TYPE) + high_bytes(TYPE)) * groups + 2 * index;
        if constexpr (TYPE != Q8_0) {
            const uint32_t at =
                (code_bytes(TYPE) + high_bytes(TYPE) + scale_bytes(TYPE)) * groups + index / 8 * (TYPE == Q6_K ? 2 : 4);
#pragma unroll
            for (int i = 0; i < 2; i++) blocks[i] = load_block<TYPE>(rows[i] + at);
        }
    }

    // Fragments of groups `pair` times two and the next.
    __device__ __forceinline__ void load(int pair, uint32_t (&a)[2][4]) const {
        uint32_t low[4];
        load_matrices(low, codes + 32 * pair);
        if constexpr (TYPE == Q8_0) {
            uint32_t high[4];
            load_matrices(high, upper + 32 * pair);
#pragma unroll
            for (int i = 0; i < 4; i++) a[i / 2][i % 2] = low[i], a[i / 2][2 + i % 2] = high[i];
            return;
        }
        const uint32_t t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint2 five{};
            uint4 six{};
            if constexpr (TYPE == Q5_K) five = *reinterpret_cast<const uint2 *>(rows[half] + high + 8 * pair);
            if constexpr (TYPE == Q6_K) six = *reinterpret_cast<const uint4 *>(rows[half] + high + 16 * pair);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t lower = low[2 * r + half] & 0x0f0f0f0f, higher = low[2 * r + half] >> 4 & 0x0f0f0f0f;
                if constexpr (TYPE == Q5_K) {
                    const uint32_t bits = (r ? five.y : five.x) >> t;
                    lower |= bits << 4 & 0x10101010, higher |= bits & 0x10101010;
                }
                if constexpr (TYPE == Q6_K) {
                    const uint32_t x = (r ? six.z : six.x) >> (2 * t), y = (r ? six.w : six.y) >> (2 * t);
                    lower = less_32(lower | (x << 4 & 0x30303030)), higher = less_32(higher | (y << 4 & 0x30303030));
                }
                a[r][half] = lower, a[r][2 + half] = higher;
            }
        }
    }

    // Factors of these groups.
    __device__ __forceinline__ void load_rows(int pair, RowFactors (&factors)[2][2]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t both = read_at<uint32_t>(rows[half] + scales, pair);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t own = both >> 16 * r;
                if constexpr (TYPE == Q8_0) factors[r][half] = plain_factors(reinterpret_cast<const uint8_t *>(&own));
                else factors[r][half] = load_factors<TYPE>(blocks[half], own);
            }
        }
    }
};

// The columns of a lane: where it loads matrices of codes, and the factors of those whose sums it has.
struct Columns {
    uint32_t codes;
    const uint8_t *even, *odd;

    // `index` is the first group that the warp has of a slice.
    __device__ __forceinline__ Columns(const RowsOfX &x, const uint8_t *shared, uint32_t index) {
        const uint32_t lane = threadIdx.x % WARP, last = x.batch - 1;
        const uint8_t *factors = shared + x.factors + 8 * index;
        codes =
            shared_address(shared) + min(lane % 8, last) * x.code_stride + (index + lane / 16) * 32 + lane / 8 % 2 * 16;
        even = factors + min(lane % 4 * 2, last) * x.factor_stride,
        odd = factors + min(lane % 4 * 2 + 1, last) * x.factor_stride;
    }
    __device__ __forceinline__ void advance() {
        codes += 32 * SLICE_GROUPS, even += 8 * SLICE_GROUPS, odd += 8 * SLICE_GROUPS;
    }
};

// Adds the products of the warp's groups.
template <int TYPE>
__device__ __forceinline__ void add_slice(const Slice<TYPE> &slice, const Columns &columns, float (&sum)[GROUPS][4]) {
#pragma unroll
    for (int pair = 0; pair < GROUPS / 2; pair++) {
        uint32_t a[2][4], b[4];
        RowFactors rows[2][2];
        slice.load(pair, a);
        slice.load_rows(pair, rows);
        load_matrices(b, columns.codes + 64 * pair);
        const float4 even = read_at<float4>(columns.even, pair), odd = read_at<float4>(columns.odd, pair);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const ColumnFactors factors[2] = {r ? ColumnFactors{even.z, even.w} : ColumnFactors{even.x, even.y},
                r ? ColumnFactors{odd.z, odd.w} : ColumnFactors{odd.x, odd.y}};
            const uint32_t own[2] = {b[2 * r], b[2 * r + 1]};
            add_tile<TYPE>(sum[2 * pair + r], a[r], rows[r], own, factors);
        }
    }
}

// Puts the sums of the warp's groups where those of all warps are added.
__device__ __forceinline__ void put_parts(const float (&sum)[GROUPS][4], float *parts) {
    const uint32_t warp = threadIdx.x / WARP % WARPS, lane = threadIdx.x % WARP;
    float *to = parts + warp * SUMS + lane % 4 * 2 * SUM_STRIDE + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i % 2 * SUM_STRIDE + i / 2 * 8] = add_four(sum[0][i], sum[1][i], sum[2][i], sum[3][i]);
}

__device__ __forceinline__ float add_parts(const float *parts, uint32_t row, uint32_t column) {
    float v[WARPS];
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++) v[i] = parts[i * SUMS + column * SUM_STRIDE + row];
    return __fadd_rn(add_four(v[0], v[1], v[2], v[3]), add_four(v[4], v[5], v[6], v[7]));
}
