// Between projection and attention: RMS norm of each head, rotation by position, and keys and values into their pages.
// A warp a head.
#include "attention/heads.cuh"
#include "attention/kv_q8.cuh"

constexpr int HEADS_A_BLOCK = 4;
// Most elements of a head.
constexpr uint32_t MOST_DIM = 576;

__device__ __forceinline__ void store_cache(const HeadsArgs &args, size_t at, float v) {
    if (args.cache_f32) {
        reinterpret_cast<float *>(args.cache)[at] = v;
    } else {
        reinterpret_cast<__half *>(args.cache)[at] = __float2half_rn(v);
    }
}

// The same for a key or value of 8 bits, which the warp has in shared memory.
__device__ __forceinline__ void store_turned(
    const HeadsArgs &args, const float *turned, size_t run, uint32_t head, uint32_t dim, uint32_t slot) {
    constexpr uint32_t COUNT = MOST_DIM / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    float x[COUNT];
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) x[j] = lane + j * WARP < dim ? turned[lane + j * WARP] : 0.0f;
    store_q8(x, dim, Q8Run(args.cache, run + (size_t)head * PAGE_TOKENS * q8_bytes(dim), dim), slot);
}

template <bool IS_Q8>
__device__ __forceinline__ void turn_and_store(const HeadsArgs &args, float *turned) {
    await_then_launch();
    const uint32_t row = blockIdx.y;
    uint32_t head = blockIdx.x * HEADS_A_BLOCK + threadIdx.x / WARP;
    if (head >= args.heads + 2 * args.kv_heads) return;
    if (head < args.heads) {
        float *q = args.q + ((size_t)row * args.heads + head) * args.head_dim;
        turn_head(args, row, q, args.q_norm, args.head_dim, args.half_dims, [&](uint32_t i, float v) { q[i] = v; });
        return;
    }
    head -= args.heads;
    const bool is_key = head < args.kv_heads;
    if (!is_key) head -= args.kv_heads;
    const uint32_t dim = is_key ? args.head_dim : args.value_dim;
    const Row item = args.rows[row];
    const uint32_t page = args.tables[(size_t)item.slot * args.table_stride + item.position / PAGE_TOKENS];
    const size_t run = page * args.page_elements + (is_key ? args.keys : args.values);
    const size_t to = run + ((size_t)head * PAGE_TOKENS + item.position % PAGE_TOKENS) * dim;
    const float *from = (is_key ? args.k : args.v) + ((size_t)row * args.kv_heads + head) * dim;
    const auto put = [&](uint32_t i, float v) {
        if constexpr (IS_Q8) turned[i] = v;
        else store_cache(args, to + i, v);
    };
    turn_head(args, row, from, is_key ? args.k_norm : args.v_norm, dim, is_key ? args.half_dims : 0, put);
    if constexpr (IS_Q8) store_turned(args, turned, run, head, dim, item.position % PAGE_TOKENS);
}

extern "C" __global__ void __launch_bounds__(HEADS_A_BLOCK *WARP)
    qk_norm_rope_kv(const __grid_constant__ HeadsArgs args, Shape) {
    turn_and_store<false>(args, nullptr);
}

extern "C" __global__ void __launch_bounds__(HEADS_A_BLOCK *WARP)
    qk_norm_rope_kv_q8(const __grid_constant__ HeadsArgs args, Shape) {
    __shared__ float turned[HEADS_A_BLOCK][MOST_DIM];
    turn_and_store<true>(args, turned[threadIdx.x / WARP]);
}
