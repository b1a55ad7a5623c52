// What is done element by element: additions, scales, caps, and the activations of the feed-forward, alone (`gelu_erf`)
// and as gated units
// (`gelu_erf_mul`; Shazeer, "GLU Variants Improve Transformer"). A thread an element; each kernel writes the form that
// the next multiplication reads.
#include "quant/activation.cuh"

struct ElementwiseArgs {
    Activation x;    // read and written
    const float *y;  // the other operand, null where there is none
    const Row *rows;
    uint32_t width;
    float a, b;         // as the operation says
    uint32_t period;    // positions of the trained context
    uint32_t y_stride;  // elements of a row that `y` is in
    uint32_t pad;
    const float *gate;  // of each row, for `add_gated_rows`
    const float *sum;   // what that adds `y` to before it adds all to x, null for nothing
};
static_assert(sizeof(ElementwiseArgs) == 88, "as in args.rs");

template <typename F>
__device__ __forceinline__ void map_elements(const ElementwiseArgs &args, F f) {
    await_then_launch();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t at = (size_t)blockIdx.y * args.width + col, y_at = (size_t)blockIdx.y * args.y_stride + col;
    const float v = col < args.width ? f(args.x.x[at], y_at) : 0.0f;
    emit(args.x, blockIdx.y, col, args.width, v);
}

__device__ __forceinline__ float cap_of(float x, float cap) { return __fmul_rn(cap, tanhf(__fdiv_rn(x, cap))); }

__device__ __forceinline__ float gelu_erf_of(float x) {
    return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, erff(__fmul_rn(x, 0.70710678118654752440f))));
}

__device__ __forceinline__ float squared_relu_of(float x) {
    const float positive = fmaxf(x, 0.0f);
    return __fmul_rn(positive, positive);
}

__device__ __forceinline__ float add_gated(const ElementwiseArgs &args, float x, size_t at) {
    const float v = __fmul_rn(args.y[at], sigmoid_of(args.gate[blockIdx.y]));
    return __fadd_rn(x, args.sum != nullptr ? __fadd_rn(args.sum[at], v) : v);
}

#define ELEMENTWISE(name, expression)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ ElementwiseArgs args, Shape) { \
        map_elements(args, [&](float x, size_t at) { return expression; });                                       \
    }

ELEMENTWISE(copy_rows, x)  // only the form of it
ELEMENTWISE(add, __fadd_rn(x, args.y[at]))
ELEMENTWISE(add_scaled, __fmaf_rn(args.a, args.y[at], x))
ELEMENTWISE(mul, __fmul_rn(x, args.y[at]))
// With a gate for each element, or one for the row.
ELEMENTWISE(mul_sigmoid, __fmul_rn(x, sigmoid_of(args.y[at])))
ELEMENTWISE(mul_sigmoid_row, __fmul_rn(x, sigmoid_of(args.y[blockIdx.y])))
// The same of `y`, added to a sum that is added to x, or to x itself.
ELEMENTWISE(add_gated_rows, add_gated(args, x, at))
ELEMENTWISE(scale, __fmul_rn(x, args.a))
ELEMENTWISE(softcap, cap_of(x, args.a))
// `a` is the factor of the logarithm of how often the position has passed the trained context.
ELEMENTWISE(
    temperature, __fmul_rn(x, __fmaf_rn(args.a, logf((float)(1 + args.rows[blockIdx.y].position / args.period)), 1.0f)))
// SiLU, and GELU by the hyperbolic tangent.
ELEMENTWISE(sigmoid, activate(Sigmoid{args.a, args.b}, x))
ELEMENTWISE(sigmoid_mul, gated(Sigmoid{args.a, args.b}, x, args.y[at]))
ELEMENTWISE(gelu_erf, gelu_erf_of(x))
ELEMENTWISE(gelu_erf_mul, __fmul_rn(gelu_erf_of(x), args.y[at]))
ELEMENTWISE(squared_relu, squared_relu_of(x))
ELEMENTWISE(squared_relu_mul, __fmul_rn(squared_relu_of(x), args.y[at]))
ELEMENTWISE(clamped_silu_mul, clamped_gated(args.b, args.a, x, args.y[at]))
