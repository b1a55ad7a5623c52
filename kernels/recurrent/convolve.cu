// Convolution of each column with the rows before it, of up to three values at once, with SiLU and an RMSNorm of each
// head behind it where these follow. A block takes some columns of one row: a head, where heads are normalized. The
// block of a stretch's last row leaves the rows that the next pass begins with.
#include "recurrent/channel.cuh"

constexpr int MOST_PARTS = 3, THREADS = 256;

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
    ConvolvePart parts[MOST_PARTS];
};
static_assert(sizeof(ConvolveArgs) == 256, "as in args.rs");

extern "C" __global__ void __launch_bounds__(THREADS) convolve(const __grid_constant__ ConvolveArgs args, Shape) {
    __shared__ float shares[THREADS / WARP];
    launch_dependents();
    uint32_t at = 0;
    while (at + 1 < args.count && blockIdx.x >= args.parts[at + 1].first_block) at++;
    const ConvolvePart &part = args.parts[at];
    const uint32_t col = (blockIdx.x - part.first_block) * part.tile + threadIdx.x;
    const uint32_t row = blockIdx.y, number = args.rows[row].stretch;
    const bool is_padding = number == NONE, is_inside = !is_padding && threadIdx.x < part.tile && col < part.width;
    const Stretch stretch = is_padding ? Stretch{0, 0, NONE, NONE, NONE} : args.stretches[number];
    Channel<MOST_TAPS> channel(part.convolution, args.records, stretch, part.width, col, row, args.taps, is_inside);
    const float norm = is_inside && part.norm != nullptr ? part.norm[threadIdx.x] : 0.0f;
    await_dependencies();
    float v = channel.result();
    if (is_inside && channel.index + 1 == stretch.count) channel.keep(args.records, stretch);
    if (part.activates) v = activate(Sigmoid{1.0f, 0.0f}, v);
    if (part.norm != nullptr) {
        const float squares = warp_sum(is_inside ? __fmul_rn(v, v) : 0.0f);
        if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP] = squares;
        __syncthreads();
        v = __fmul_rn(__fmul_rn(v, head_factor(shares, blockDim.x / WARP, part.tile, part.eps)), norm);
    }
    if (is_inside) part.out[(size_t)row * part.width + col] = v;
}
