// Norms whose result is there as such, for any reader: of whole rows or of each head of a row, by the root of the mean
// square (Zhang and Sennrich, "Root Mean Square Layer Normalization") or by mean and variance (Ba et al., "Layer
// Normalization"). A block a row or a head, of a single warp where that is small. What products alone read is
// normalized by `rms_norm` (rms_norm.cu), which leaves the division to them. Behind the norm of heads may stand a gated
// unit, of which it is the second value. Groups of a row are normalized as heads are, but have weights of their own.
// Where the sum of a row and a norm of another is only there to be normalized and added to a third, that is done too.
#include "elementwise/rms_norm.cuh"
#include "quant/activation.cuh"

struct NormalizeArgs {
    const float *x;
    const float *weight, *bias;  // `bias` may be null
    const float *sum;            // what the result is added to, null for nothing
    const float *gate;           // whose activation the result is multiplied by, null for none
    Activation out;
    uint32_t width;  // elements that are normalized together
    float eps;
    uint32_t centered;  // 1 for a layer norm, which subtracts the mean
    float factor;       // what the result is multiplied by before it is added
    Sigmoid unit;       // the activation
    uint32_t grouped;   // 1 where part blockIdx.y of a row has weights of its own, behind those of the parts before it
    float scale;        // what the result is multiplied by at the end
    const float *then_weight, *then_sum;  // where the sum is normalized again, and what that is added to; null for none
    float then_factor, then_eps;

    // The first weight of the block's part.
    __device__ __forceinline__ uint32_t first_weight() const { return grouped ? blockIdx.y * width : 0; }
};
static_assert(sizeof(NormalizeArgs) == 128, "as in args.rs");

// The sum over the block, the same in every thread.
__device__ __forceinline__ float block_sum(float v, float *shares) {
    share_squares(v, shares);
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_THREADS / WARP; i++) {
        if (i * WARP < blockDim.x) sum = __fadd_rn(sum, shares[i]);
    }
    return sum;
}

__device__ __forceinline__ float add_quad(const float4 &v, float sum) {
    return __fadd_rn(v.w, __fadd_rn(v.z, __fadd_rn(v.y, __fadd_rn(v.x, sum))));
}

__device__ __forceinline__ float4 subtract(const float4 &v, float mean) {
    return make_float4(__fsub_rn(v.x, mean), __fsub_rn(v.y, mean), __fsub_rn(v.z, mean), __fsub_rn(v.w, mean));
}

__device__ __forceinline__ float finish(float v, float factor, float weight) {
    return __fmul_rn(__fmul_rn(v, factor), weight);
}

__device__ __forceinline__ float4 finish(const float4 &v, float factor, const float4 &weight) {
    return make_float4(finish(v.x, factor, weight.x), finish(v.y, factor, weight.y), finish(v.z, factor, weight.z),
        finish(v.w, factor, weight.w));
}

__device__ __forceinline__ float4 multiply_add(float factor, const float4 &v, const float4 &before) {
    return make_float4(__fmaf_rn(factor, v.x, before.x), __fmaf_rn(factor, v.y, before.y),
        __fmaf_rn(factor, v.z, before.z), __fmaf_rn(factor, v.w, before.w));
}

__device__ __forceinline__ float rms_factor(float squares, uint32_t width, float eps) {
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)width), eps)));
}

// Rows of whole quads that the block's registers hold: everything is on its way at once, the weights before the wait.
__device__ __forceinline__ void normalize_quads(
    const NormalizeArgs &args, uint32_t row, float (*shares)[NORM_THREADS / WARP]) {
    const uint32_t quads = args.width / 4;
    const float4 *x = reinterpret_cast<const float4 *>(args.x) + (size_t)row * quads;
    const float4 *weights = reinterpret_cast<const float4 *>(args.weight + args.first_weight()),
                 *biases = reinterpret_cast<const float4 *>(args.bias + args.first_weight()),
                 none = make_float4(0, 0, 0, 0);
    float4 weight[NORM_QUADS], bias[NORM_QUADS], v[NORM_QUADS], before[NORM_QUADS];
    float4 then_weight[NORM_QUADS], then_before[NORM_QUADS];
    const bool goes_on = args.then_weight != nullptr;
    const float4 *then_weights = reinterpret_cast<const float4 *>(args.then_weight),
                 *then_sum = reinterpret_cast<const float4 *>(args.then_sum);
    // What is added to, or the gate: a launch has one of them at most.
    const float4 *other = reinterpret_cast<const float4 *>(args.gate != nullptr ? args.gate : args.sum);
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        weight[i] = quad < quads ? __ldg(weights + quad) : none;
        bias[i] = quad < quads && args.bias != nullptr ? __ldg(biases + quad) : none;
        then_weight[i] = quad < quads && goes_on ? __ldg(then_weights + quad) : none;
    }
    launch_then_await();
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        v[i] = quad < quads ? x[quad] : none;
        before[i] = quad < quads && other != nullptr ? other[(size_t)row * quads + quad] : none;
        then_before[i] = quad < quads && goes_on ? then_sum[(size_t)row * quads + quad] : none;
    }
    if (args.centered) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++) sum = add_quad(v[i], sum);
        const float mean = __fdiv_rn(block_sum(sum, shares[0]), (float)args.width);
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++) {
            if (threadIdx.x + i * NORM_THREADS < quads) v[i] = subtract(v[i], mean);
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) squares = add_squares(v[i], squares);
    const float factor = rms_factor(block_sum(squares, shares[1]), args.width, args.eps);
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        float4 &r = v[i];
        r = finish(r, factor, weight[i]);
        if (args.bias != nullptr) {
            r = make_float4(__fadd_rn(r.x, bias[i].x), __fadd_rn(r.y, bias[i].y), __fadd_rn(r.z, bias[i].z),
                __fadd_rn(r.w, bias[i].w));
        }
        if (args.sum != nullptr) r = multiply_add(args.factor, r, before[i]);
        if (args.gate != nullptr) {
            r = make_float4(gated(args.unit, before[i].x, r.x), gated(args.unit, before[i].y, r.y),
                gated(args.unit, before[i].z, r.z), gated(args.unit, before[i].w, r.w));
        }
    }
    if (goes_on) {
        squares = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++) squares = add_squares(v[i], squares);
        const float then_factor = rms_factor(block_sum(squares, shares[2]), args.width, args.then_eps);
#pragma unroll
        for (uint32_t i = 0; i < NORM_QUADS; i++)
            v[i] = multiply_add(args.then_factor, finish(v[i], then_factor, then_weight[i]), then_before[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < NORM_QUADS; i++) {
        const uint32_t quad = threadIdx.x + i * NORM_THREADS;
        if (i * NORM_THREADS >= quads) break;
        const float4 r = make_float4(__fmul_rn(v[i].x, args.scale), __fmul_rn(v[i].y, args.scale),
            __fmul_rn(v[i].z, args.scale), __fmul_rn(v[i].w, args.scale));
        emit_quad<true>(args.out, row, quad, args.width, quad < quads, r);
    }
}

// Rows of any width.
__device__ __forceinline__ void normalize_elements(
    const NormalizeArgs &args, uint32_t row, float (*shares)[NORM_THREADS / WARP]) {
    const uint32_t width = args.width;
    const float *x = args.x + (size_t)row * width;
    await_then_launch();
    float mean = 0.0f;
    if (args.centered) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) sum = __fadd_rn(sum, x[i]);
        mean = __fdiv_rn(block_sum(sum, shares[0]), (float)width);
    }
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) {
        const float v = __fsub_rn(x[i], mean);
        squares = __fmaf_rn(v, v, squares);
    }
    const float factor = rms_factor(block_sum(squares, shares[1]), width, args.eps);
    // Whole warps, also at the end of a row: they make 8-bit blocks together.
    const uint32_t end = (width + WARP - 1) / WARP * WARP, first = args.first_weight();
    for (uint32_t col = threadIdx.x; col < end; col += NORM_THREADS) {
        float v = 0.0f;
        if (col < width) {
            v = finish(__fsub_rn(x[col], mean), factor, args.weight[first + col]);
            if (args.bias != nullptr) v = __fadd_rn(v, args.bias[first + col]);
            if (args.sum != nullptr) v = __fmaf_rn(args.factor, v, args.sum[(size_t)row * width + col]);
            if (args.gate != nullptr) v = gated(args.unit, args.gate[(size_t)row * width + col], v);
        }
        emit(args.out, row, col, width, __fmul_rn(v, args.scale));
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    normalize(const __grid_constant__ NormalizeArgs args, Shape) {
    __shared__ float shares[3][NORM_THREADS / WARP];
    const uint32_t row = blockIdx.x * gridDim.y + blockIdx.y;
    if (args.width % WARP == 0 && args.width <= 4 * NORM_QUADS * NORM_THREADS) normalize_quads(args, row, shares);
    else normalize_elements(args, row, shares);
}
