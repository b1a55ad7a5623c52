// Some elements of each head of a value, to places of the same head of another one: parts of heads as a value of their
// own, and heads put together of two values'. A thread an element.
#include "device.cuh"

struct CopyHeadsArgs {
    const float *x;
    float *out;
    uint32_t each, first;          // elements of a head of `x`, and the first that is copied
    uint32_t out_each, out_first;  // of `out`, and where that goes
    uint32_t count, width;         // elements of a head that are copied, and of all heads of a row
};
static_assert(sizeof(CopyHeadsArgs) == 40, "as in args.rs");

extern "C" __global__ void __launch_bounds__(256) copy_heads(const __grid_constant__ CopyHeadsArgs args, Shape) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= args.width) return;
    const size_t head = (size_t)blockIdx.y * (args.width / args.count) + col / args.count;
    const uint32_t at = col % args.count;
    args.out[head * args.out_each + args.out_first + at] = args.x[head * args.each + args.first + at];
}
