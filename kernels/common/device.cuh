// What every kernel shares: the shape of a launch, matrices in their repacked planes, activations with their 8-bit form.
// The structs are passed by value and mirrored field by field in src/backend/cuda/args.rs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Positions of a page, and of a split of attention.
constexpr int PAGE_TOKENS = 32;
constexpr int SPLIT_TOKENS = 256;

// What differs between buckets; everything else of a launch is the same for all of them.
struct Shape {
    uint32_t rows;     // rows of the batch, padding included
    uint32_t outputs;  // rows whose logits are wanted, padding included
    uint32_t splits;   // 1: a block walks over all splits of its row; otherwise a block for each, enough for the longest row
    uint32_t pad;
};

// One token to evaluate.
struct __align__(16) Row {
    uint32_t token, position, slot, pad;
};

enum DType : uint32_t { F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_K = 4, Q5_K = 5, Q6_K = 6 };

// A weight matrix: rows of `row_bytes`. Float rows stand as they are. A row of a quantized matrix is cut into slices of 1024 columns, one group of
// 32 for each lane of a warp, the last slice of the row perhaps shorter. A slice of g groups holds, in this order, padded to 16 bytes:
//   codes   Q8_0: 16 bytes a group with values 0 to 15, then 16 bytes a group with values 16 to 31;
//           else 16 bytes a group, the low 4 bits of values 0 to 15 in low nibbles, of 16 to 31 in high ones
//   high    Q5_K: a word a group, the fifth bit of value 4w + b at bit 8b + w;
//           Q6_K: two words a group, the upper bits of value 4w + b at bit 8b + 2(w % 4) of word w / 4
//   scales  a byte pair a group: Q4_K and Q5_K scale and minimum, Q6_K the signed scales of both halves
//   blocks  Q8_0: a half a group; Q4_K and Q5_K: two halves, Q6_K: one, for each 8 groups
struct Matrix {
    const uint8_t *data;
    uint32_t row_bytes, slice_bytes;  // of a whole slice
    uint32_t dtype, rows, cols, pad;
};

constexpr int SLICE_GROUPS = 32;

// Bytes before the part of a slice that follows the codes, for each of its groups.
__host__ __device__ constexpr uint32_t code_bytes(uint32_t dtype) { return dtype == Q8_0 ? 32 : 16; }
__host__ __device__ constexpr uint32_t high_bytes(uint32_t dtype) { return dtype == Q5_K ? 4 : dtype == Q6_K ? 8 : 0; }
__host__ __device__ constexpr uint32_t scale_bytes(uint32_t dtype) { return dtype == Q8_0 ? 0 : 2; }

// Scale of 32 8-bit activations, and the sums of their two halves.
struct __align__(8) Meta {
    float scale;
    short2 sums;
};

// A matrix of activations, with its 8-bit form where a quantized matrix reads it (`q` is null otherwise). Products of row r are multiplied by
// `factors[r]`, where there are factors: a norm leaves its own there.
struct Activation {
    float *x;
    int8_t *q;
    Meta *meta;
    float *factors;
};

// Waits until all results of the kernels before are visible, then lets the next kernel of the graph begin its launch.
__device__ __forceinline__ void wait_for_producers() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The other way round, for kernels whose successors have much to do before they wait.
__device__ __forceinline__ void release_and_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

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
