// What every kernel shares: the shape of a launch, matrices in their repacked planes, activations with their 8-bit
// form. The structs are passed by value and mirrored field by field in src/backend/cuda/args.rs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "quant/types.cuh"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Positions of a page.
constexpr int PAGE_TOKENS = 32;

// What differs between buckets; everything else of a launch is the same for all of them.
struct Shape {
    uint32_t rows;     // rows of the batch, padding included
    uint32_t outputs;  // rows whose logits are wanted, padding included
    uint32_t splits;   // splits of attention that the longest row may have; 0 for a prompt, whose blocks walk over all
    uint32_t draws;    // 1 where tokens are drawn by their options, 0 where each is that of the highest logit
};
static_assert(sizeof(Shape) == 16, "as in args.rs");

// One token to evaluate.
struct __align__(16) Row {
    uint32_t token, position, slot;
    uint32_t stretch;  // of the rows of its sequence, where layers have states (recurrent/stretch.cuh)
};
static_assert(sizeof(Row) == 16, "as in args.rs");

// A weight matrix: rows of `row_bytes`. Float rows stand as they are; types.cuh tells how quantized ones lie in slices.
struct Matrix {
    const uint8_t *data;
    uint32_t row_bytes, slice_bytes;  // of a whole slice
    uint32_t dtype, rows, cols, pad;
};
static_assert(sizeof(Matrix) == 32, "as in args.rs");

// Scale of 32 8-bit activations, and the sums of their two halves.
struct __align__(8) Meta {
    float scale;
    short2 sums;
};

// A matrix of activations, with its 8-bit form where a quantized matrix reads it (`q` is null otherwise). Where `meta`
// is null and `q` is not, `q` points to 16-bit floats (f16_layout.cuh), and those of `x` are not there. Products of row
// r are multiplied by `factors[r]`, where there are factors: a norm leaves its own there.
struct Activation {
    float *x;
    int8_t *q;
    Meta *meta;
    float *factors;
};

// An activation x / (1 + exp(-x (linear + cubic x^2))): SiLU has 1 and 0, GELU by the hyperbolic tangent 2 sqrt(2 / pi)
// and 0.044715 times that.
struct Sigmoid {
    float linear, cubic;
};

// Lets the next kernel of the graph begin its launch, once all blocks have come here.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until all results of the kernels before are visible. What is read here before that, once more after it, must
// come by `__ldcg`.
__device__ __forceinline__ void await_dependencies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void await_then_launch() {
    await_dependencies();
    launch_dependents();
}

// The other way round, for kernels whose successors have much to do before they wait.
__device__ __forceinline__ void launch_then_await() {
    launch_dependents();
    await_dependencies();
}

// Keeps a value in its register, which would otherwise be made again behind the wait.
__device__ __forceinline__ void keep(uint32_t &v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void keep(uint64_t &v) { asm volatile("" : "+l"(v)); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}
