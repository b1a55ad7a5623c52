// The sum of the rows of a row's experts, by the weights of the choice and in its order, in the place of a value or
// added to it.
#include "quant/activation.cuh"

struct WeightedSumArgs {
    const float *x;  // a row for each pair
    const float *choice;
    Activation out;
    uint32_t width, chosen;
    float adds;  // what the sum is multiplied by and then added to `out`; 0 where it takes the place of that
    uint32_t pad;
};
static_assert(sizeof(WeightedSumArgs) == 64, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) weighted_sum(const __grid_constant__ WeightedSumArgs args, Shape) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const float *weights = args.choice + ((size_t)blockIdx.y * 2 + 1) * args.chosen;
    const float *x = args.x + (size_t)blockIdx.y * args.chosen * args.width + col;
    float sum = 0.0f;
    if (col < args.width) {
        const float residual = args.adds ? args.out.x[(size_t)blockIdx.y * args.width + col] : 0.0f;
#pragma unroll 4
        for (uint32_t slot = 0; slot < args.chosen; slot++)
            sum = __fmaf_rn(weights[slot], x[(size_t)slot * args.width], sum);
        if (args.adds) sum = __fmaf_rn(args.adds, sum, residual);
    }
    emit(args.out, blockIdx.y, col, args.width, sum);
}
