// Convolution of each column with the rows before it, of up to three values at once, with SiLU and an RMSNorm of each
// head behind it where these follow. A block takes some columns of one row: a head, where heads are normalized. The
// block of a stretch's last row leaves the rows that the next pass begins with.
#include "quant/activation.cuh"
#include "recurrent/stretch.cuh"

constexpr int MOST_TAPS = 16, MOST_PARTS = 3, THREADS = 256;

struct ConvolvePart {
    const float *x;
    const float *weight;  // a row for each tap, the oldest first
    const float *bias;    // null for none
    const float *norm;    // weights of a head's norm, null for none
    float *out;
    uint64_t state;  // first element in a record: the last rows of `x`, one fewer than taps, the oldest first
    uint32_t width, tile, first_block;
    float eps;
    uint32_t activates, pad;
};

struct ConvolveArgs {
    const Row *rows;
    const Stretch *stretches;
    Records records;
    uint32_t taps, count;
    ConvolvePart parts[MOST_PARTS];
};
static_assert(sizeof(ConvolveArgs) == 256, "as in args.rs");

// The rows that the outputs of a row see in one column.
struct Window {
    const float *kept;  // that of the oldest row before the pass; null where those are 0
    const float *x;     // that of the row itself
    uint32_t width, index, taps;

    // Row `tap` of the window: the last one is the row itself.
    __device__ __forceinline__ bool is_kept(uint32_t tap) const { return index + tap + 1 < taps; }
    __device__ __forceinline__ float kept_at(uint32_t tap) const {
        return kept == nullptr ? 0.0f : kept[(size_t)(index + tap) * width];
    }
    __device__ __forceinline__ float row_at(uint32_t tap) const { return *(x - (size_t)(taps - 1 - tap) * width); }
};

// The sum over the block, in one order.
__device__ __forceinline__ float sum_of_squares(float v, float *shares) {
    const float sum = warp_sum(__fmul_rn(v, v));
    if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP] = sum;
    __syncthreads();
    float all = 0.0f;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) all = __fadd_rn(all, shares[i]);
    return all;
}

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const __grid_constant__ ConvolveArgs args, Shape) {
    __shared__ float shares[THREADS / WARP];
    launch_dependents();
    uint32_t at = 0;
    while (at + 1 < args.count && blockIdx.x >= args.parts[at + 1].first_block) at++;
    const ConvolvePart &part = args.parts[at];
    const uint32_t col = (blockIdx.x - part.first_block) * part.tile + threadIdx.x;
    const uint32_t row = blockIdx.y, number = args.rows[row].stretch;
    const bool is_padding = number == NONE, is_inside = !is_padding && threadIdx.x < part.tile && col < part.width;
    const Stretch stretch = is_padding ? Stretch{} : args.stretches[number];
    Window window{nullptr, part.x + (size_t)row * part.width + col, part.width, row - stretch.first, args.taps};
    if (stretch.from != NONE) window.kept = record_at(args.records, stretch.from, part.state) + col;
    // What earlier steps left is there before the wait.
    float weight[MOST_TAPS], seen[MOST_TAPS];
#pragma unroll
    for (uint32_t tap = 0; tap < MOST_TAPS; tap++) {
        const bool is_wanted = is_inside && tap < args.taps;
        weight[tap] = is_wanted ? part.weight[(size_t)tap * part.width + col] : 0.0f;
        seen[tap] = is_wanted && window.is_kept(tap) ? window.kept_at(tap) : 0.0f;
    }
    float v = is_inside && part.bias != nullptr ? part.bias[col] : 0.0f;
    const float norm = is_inside && part.norm != nullptr ? part.norm[threadIdx.x] : 0.0f;
    await_dependencies();
#pragma unroll
    for (uint32_t tap = 0; tap < MOST_TAPS; tap++) {
        if (is_inside && tap < args.taps) {
            if (!window.is_kept(tap)) seen[tap] = window.row_at(tap);
            v = __fmaf_rn(seen[tap], weight[tap], v);
        }
    }
    if (is_inside && window.index + 1 == stretch.count) {
        float *to = record_at(args.records, stretch.to, part.state) + col;
        float *before = stretch.before == NONE ? nullptr : record_at(args.records, stretch.before, part.state) + col;
#pragma unroll
        for (uint32_t tap = 0; tap + 1 < MOST_TAPS; tap++) {
            if (tap + 1 >= args.taps) break;
            to[(size_t)tap * part.width] = seen[tap + 1];
            if (before != nullptr) before[(size_t)tap * part.width] = seen[tap];
        }
    }
    if (part.activates) v = activate(Sigmoid{1.0f, 0.0f}, v);
    if (part.norm != nullptr) {
        const float squares = sum_of_squares(is_inside ? v : 0.0f, shares);
        const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)part.tile), part.eps)));
        v = __fmul_rn(__fmul_rn(v, factor), norm);
    }
    if (is_inside) part.out[(size_t)row * part.width + col] = v;
}
