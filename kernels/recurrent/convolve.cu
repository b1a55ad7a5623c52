// Convolution of each column with the rows before it, of up to three values at once, with SiLU and an RMSNorm of each
// head behind it where these follow. A block takes some columns, a head where heads are normalized, of one row in steps
// and of some in prompts. The block of a stretch's last row leaves the rows that the next pass begins with.
#include "recurrent/channel.cuh"

constexpr int MOST_PARTS = 3, THREADS = 256;
// Most rows of a block, and taps of which there is room in registers for so many columns.
constexpr uint32_t ROWS = 8;
constexpr int FEW_TAPS = 4;

struct ConvolvePart {
    Convolution convolution;
    const float *norm;  // weights of a head's norm, null for none
    float *out;
    uint32_t width, tile, first_block;
    float eps;
    uint32_t activates, pad;
};

struct ConvolveArgs {
    const Row *rows;
    const Stretch *stretches;
    Records records;
    uint32_t taps, count;
    uint32_t rows_each, pad;  // rows of a block
    ConvolvePart parts[MOST_PARTS];
};
static_assert(sizeof(ConvolveArgs) == 264, "as in args.rs");

// The stretch of a row, empty for padding.
__device__ __forceinline__ Stretch stretch_of(const ConvolveArgs &args, uint32_t number) {
    return number == NONE ? Stretch{0, 0, NONE, NONE, NONE} : args.stretches[number];
}

using Shares = float[ROWS][THREADS / WARP];

template <int TAPS>
__device__ __forceinline__ void convolve_rows(
    const ConvolveArgs &args, const ConvolvePart &part, uint32_t rows, Shares &shares) {
    const uint32_t col = (blockIdx.x - part.first_block) * part.tile + threadIdx.x;
    const bool has_col = threadIdx.x < part.tile && col < part.width;
    const uint32_t first = blockIdx.y * args.rows_each, count = min(args.rows_each, rows - first);
    const auto channel_of = [&](uint32_t row, uint32_t number, const Stretch &stretch) {
        return Channel<TAPS>(
            part.convolution, args.records, stretch, part.width, col, row, args.taps, has_col && number != NONE);
    };
    uint32_t number = args.rows[first].stretch;
    Stretch stretch = stretch_of(args, number);
    Channel<TAPS> channel = channel_of(first, number, stretch);
    const float norm = has_col && part.norm != nullptr ? part.norm[threadIdx.x] : 0.0f;
    await_dependencies();
    float x[ROWS], v[ROWS];
#pragma unroll
    for (uint32_t i = 1; i < ROWS; i++)
        x[i] = has_col && i < count ? part.convolution.x[(size_t)(first + i) * part.width + col] : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        v[i] = 0.0f;
        if (i >= count) continue;
        const uint32_t own = i == 0 ? number : args.rows[first + i].stretch;
        if (i > 0 && own == number) {
            v[i] = channel.next_result(x[i]);
        } else {
            if (i > 0) number = own, stretch = stretch_of(args, own), channel = channel_of(first + i, own, stretch);
            v[i] = channel.result();
        }
        if (channel.is_inside && channel.index + 1 == stretch.count) channel.keep(args.records, stretch);
        if (part.activates) v[i] = activate(Sigmoid{1.0f, 0.0f}, v[i]);
    }
    if (part.norm != nullptr) {
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
            if (i >= count) break;
            const float squares = warp_sum(has_col ? __fmul_rn(v[i], v[i]) : 0.0f);
            if (threadIdx.x % WARP == 0) shares[i][threadIdx.x / WARP] = squares;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++) {
            if (i >= count) break;
            const float factor = head_factor(shares[i], blockDim.x / WARP, part.tile, part.eps);
            v[i] = __fmul_rn(__fmul_rn(v[i], factor), norm);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        if (i < count && has_col && args.rows[first + i].stretch != NONE)
            part.out[(size_t)(first + i) * part.width + col] = v[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const __grid_constant__ ConvolveArgs args, Shape shape) {
    __shared__ Shares shares;
    launch_dependents();
    uint32_t at = 0;
    while (at + 1 < args.count && blockIdx.x >= args.parts[at + 1].first_block) at++;
    const ConvolvePart &part = args.parts[at];
    if (args.taps <= FEW_TAPS) convolve_rows<FEW_TAPS>(args, part, shape.rows, shares);
    else convolve_rows<MOST_TAPS>(args, part, shape.rows, shares);
}
