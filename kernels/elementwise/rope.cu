// Rotary position embedding (Su et al., "RoFormer") of the heads of a value by itself, in place. A warp a head.
#include "device.cuh"

constexpr int HEADS_A_BLOCK = 4;

struct RopeArgs {
    float *x;
    const float *cos, *sin;  // of each row, `half_dims` of them
    uint32_t heads, head_dim, half_dims;
    uint32_t pairs;  // elements 2i and 2i + 1 rotate together, instead of i and i + half_dims
};
static_assert(sizeof(RopeArgs) == 40, "as in args.rs");

extern "C" __global__ void __launch_bounds__(HEADS_A_BLOCK *WARP) rope(const __grid_constant__ RopeArgs args, Shape) {
    await_then_launch();
    const uint32_t row = blockIdx.y, head = blockIdx.x * HEADS_A_BLOCK + threadIdx.x / WARP;
    if (head >= args.heads) return;
    float *x = args.x + ((size_t)row * args.heads + head) * args.head_dim;
    for (uint32_t i = threadIdx.x % WARP; i < args.half_dims; i += WARP) {
        const float c = args.cos[row * args.half_dims + i], s = args.sin[row * args.half_dims + i];
        const uint32_t first = args.pairs ? 2 * i : i, second = args.pairs ? 2 * i + 1 : i + args.half_dims;
        const float a = x[first], b = x[second];
        x[first] = __fmaf_rn(a, c, -__fmul_rn(b, s));
        x[second] = __fmaf_rn(a, s, __fmul_rn(b, c));
    }
}
