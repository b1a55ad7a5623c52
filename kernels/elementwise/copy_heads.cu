// Heads made of some elements of the same head of a value, and behind them the head of another one, if there is one:
// parts of heads as a value of their own, and heads put together of two values'. A thread an element.
#include "device.cuh"

struct CopyHeadsArgs {
    const float *x, *y;  // `y` may be null
    float *out;
    uint32_t each, first, count;  // elements of a head of `x`, the first that is copied, and how many are
    uint32_t y_each;              // elements of a head of `y`
    uint32_t width;               // of all heads of a row of `out`
    uint32_t pad;
};
static_assert(sizeof(CopyHeadsArgs) == 48, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) copy_heads(const __grid_constant__ CopyHeadsArgs args, Shape) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= args.width) return;
    const uint32_t out_each = args.count + args.y_each, at = col % out_each;
    const size_t head = (size_t)blockIdx.y * (args.width / out_each) + col / out_each;
    args.out[head * out_each + at] =
        at < args.count ? args.x[head * args.each + args.first + at] : args.y[head * args.y_each + at - args.count];
}
