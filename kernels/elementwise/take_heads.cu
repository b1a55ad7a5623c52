// Some elements of each head of a value, as a value of its own: a thread an element.
#include "device.cuh"

struct TakeHeadsArgs {
    const float *x;
    float *out;
    uint32_t each, first, count;  // elements of a head, the first that is taken, and how many are
    uint32_t width;               // of `out`
};
static_assert(sizeof(TakeHeadsArgs) == 32, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) take_heads(const __grid_constant__ TakeHeadsArgs args, Shape) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x, head = col / args.count;
    if (col >= args.width) return;
    const size_t from = (size_t)blockIdx.y * (args.width / args.count) * args.each + (size_t)head * args.each;
    args.out[(size_t)blockIdx.y * args.width + col] = args.x[from + args.first + col % args.count];
}
