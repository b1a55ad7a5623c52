// RMS norm of rows, one block a row, and the gated unit of the feed-forward (Shazeer, "GLU Variants Improve Transformer"). Both write the
// form that the next multiplication reads.
#include "common/activation.cuh"
#include "common/norm.cuh"

struct NormArgs {
    const float *x;
    const float *weight;
    Activation out;
    uint32_t width;
    float eps;
    const uint32_t *selected;  // rows of x that are taken, null for all
};

struct SiluArgs {
    Activation gate;
    const float *up;
    uint32_t width, pad;
};

__device__ __forceinline__ float square_sum(const float *x, uint32_t width) {
    float sum = 0.0f;
    if (width % 4 == 0) {
        const float4 *quads = reinterpret_cast<const float4 *>(x);
        for (uint32_t i = threadIdx.x; i < width / 4; i += NORM_THREADS) sum = add_squares(quads[i], sum);
    } else {
        for (uint32_t i = threadIdx.x; i < width; i += NORM_THREADS) sum = __fmaf_rn(x[i], x[i], sum);
    }
    return sum;
}

// Rows of whole 8-bit blocks, four elements a thread at a time.
__device__ __forceinline__ void norm_quads(const NormArgs &args, const float *x, float *shares) {
    const uint32_t quads = args.width / 4;
    const size_t first = (size_t)blockIdx.x * quads;
    const Activation &out = args.out;
    weigh_row(reinterpret_cast<const float4 *>(x), reinterpret_cast<const float4 *>(args.weight), quads, shares, [&](uint32_t quad, const float4 &v) {
        const bool inside = quad < quads;
        if (is_loose(out)) {
            if (inside) put_loose_quad(out, blockIdx.x, 4 * quad, args.width, v);
            return;
        }
        if (inside) reinterpret_cast<float4 *>(out.x)[first + quad] = v;
        if (out.q == nullptr) return;
        Meta meta;
        const uint32_t codes = encode_quad(v, meta);
        if (!inside) return;
        reinterpret_cast<uint32_t *>(out.q)[first + quad] = codes;
        if (quad % 8 == 0) out.meta[(first + quad) / 8] = meta;
    });
}

// Rows of any width.
__device__ __forceinline__ void norm_elements(const NormArgs &args, const float *x, float *shares) {
    wait_for_producers();
    share_squares(square_sum(x, args.width), shares);
    // Whole warps, also at the end of a row: they make 8-bit blocks together.
    const uint32_t end = (args.width + WARP - 1) / WARP * WARP;
    for (uint32_t col = threadIdx.x; col < end; col += NORM_THREADS) {
        const float v = col < args.width ? __fmul_rn(x[col], args.weight[col]) : 0.0f;
        emit(args.out, blockIdx.x, col, args.width, v);
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(NormArgs args, Shape) {
    __shared__ float shares[NORM_THREADS / WARP];
    // The list is in place since the first kernel of the step.
    const uint32_t row = args.selected != nullptr ? __ldcg(args.selected + blockIdx.x) : blockIdx.x;
    const float *x = args.x + (size_t)row * args.width;
    if (args.width % WARP == 0) norm_quads(args, x, shares);
    else norm_elements(args, x, shares);
    __syncthreads();
    if (threadIdx.x == 0) args.out.factors[blockIdx.x] = norm_factor(shares, args.width, args.eps);
}

extern "C" __global__ void __launch_bounds__(256) silu_mul(SiluArgs args, Shape) {
    wait_for_producers();
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t at = (size_t)blockIdx.y * args.width + col;
    float v = 0.0f;
    if (col < args.width) {
        const float gate = args.gate.x[at];
        v = gated(gate, args.up[at]);
    }
    emit(args.gate, blockIdx.y, col, args.width, v);
}
