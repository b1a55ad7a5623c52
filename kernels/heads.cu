// Between projection and attention: RMS norm of each head, rotation by position, and keys and values into their pages. A warp a head.
#include "common/device.cuh"

struct HeadsArgs {
    float *q;
    const float *k, *v;
    const float *q_norm, *k_norm;  // null where the family has none
    const float *cos, *sin;
    const Row *rows;
    const uint32_t *tables;
    void *cache;
    uint64_t page_elements, keys, values;  // elements of a page; first key and first value of this layer in it
    uint32_t table_stride, heads, kv_heads, head_dim, half_dims;
    uint32_t pairs;      // elements 2i and 2i + 1 rotate together, instead of i and i + half_dims
    uint32_t cache_f32;  // element type of the cache
    float eps;
};

constexpr int HEADS_A_BLOCK = 4;

__device__ __forceinline__ void store_cache(const HeadsArgs &args, size_t at, float v) {
    if (args.cache_f32) {
        reinterpret_cast<float *>(args.cache)[at] = v;
    } else {
        reinterpret_cast<__half *>(args.cache)[at] = __float2half_rn(v);
    }
}

// Factor of the norm of one head; 1 without a norm.
__device__ __forceinline__ float head_factor(const HeadsArgs &args, const float *x, const float *weight, uint32_t lane) {
    if (weight == nullptr) return 1.0f;
    float sum = 0.0f;
    for (uint32_t i = lane; i < args.head_dim; i += WARP) sum = __fmaf_rn(x[i], x[i], sum);
    return __frcp_rn(__fsqrt_rn(warp_sum(sum) / (float)args.head_dim + args.eps));
}

// Norm and rotation of one head; `put(i, v)` takes element i.
template <typename Put>
__device__ __forceinline__ void turn_head(const HeadsArgs &args, uint32_t row, const float *x, const float *weight, Put put) {
    const uint32_t lane = threadIdx.x % WARP;
    const float factor = head_factor(args, x, weight, lane);
    const auto at = [&](uint32_t i) { return weight == nullptr ? x[i] : x[i] * factor * weight[i]; };
    for (uint32_t i = lane; i < args.half_dims; i += WARP) {
        const uint32_t first = args.pairs ? 2 * i : i, second = args.pairs ? 2 * i + 1 : i + args.half_dims;
        const float c = args.cos[row * args.half_dims + i], s = args.sin[row * args.half_dims + i];
        const float a = at(first), b = at(second);
        put(first, __fmaf_rn(a, c, -__fmul_rn(b, s)));
        put(second, __fmaf_rn(a, s, __fmul_rn(b, c)));
    }
    for (uint32_t i = 2 * args.half_dims + lane; i < args.head_dim; i += WARP) put(i, at(i));
}

extern "C" __global__ void __launch_bounds__(HEADS_A_BLOCK *WARP) heads(const __grid_constant__ HeadsArgs args, Shape) {
    wait_for_producers();
    const uint32_t row = blockIdx.y, lane = threadIdx.x % WARP, dim = args.head_dim;
    uint32_t head = blockIdx.x * HEADS_A_BLOCK + threadIdx.x / WARP;
    if (head >= args.heads + 2 * args.kv_heads) return;
    if (head < args.heads) {
        float *q = args.q + ((size_t)row * args.heads + head) * dim;
        turn_head(args, row, q, args.q_norm, [&](uint32_t i, float v) { q[i] = v; });
        return;
    }
    head -= args.heads;
    const bool is_key = head < args.kv_heads;
    if (!is_key) head -= args.kv_heads;
    const Row item = args.rows[row];
    const uint32_t page = args.tables[(size_t)item.slot * args.table_stride + item.position / PAGE_TOKENS];
    const size_t run = page * args.page_elements + (is_key ? args.keys : args.values);
    const size_t to = run + ((size_t)head * PAGE_TOKENS + item.position % PAGE_TOKENS) * dim;
    const float *from = (is_key ? args.k : args.v) + ((size_t)row * args.kv_heads + head) * dim;
    if (is_key) {
        turn_head(args, row, from, args.k_norm, [&](uint32_t i, float v) { store_cache(args, to + i, v); });
    } else {
        for (uint32_t i = lane; i < dim; i += WARP) store_cache(args, to + i, from[i]);
    }
}
