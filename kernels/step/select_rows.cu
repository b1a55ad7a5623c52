// The copy of the rows whose logits are wanted. One block a row.
#include "device.cuh"

struct SelectArgs {
    const float *x;
    const uint32_t *outputs;
    float *out;
    uint32_t width, pad;
};
static_assert(sizeof(SelectArgs) == 32, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) select_rows(SelectArgs args, Shape) {
    await_then_launch();
    const size_t from = (size_t)args.outputs[blockIdx.x] * args.width, to = (size_t)blockIdx.x * args.width;
    for (uint32_t col = threadIdx.x; col < args.width; col += blockDim.x) args.out[to + col] = args.x[from + col];
}
