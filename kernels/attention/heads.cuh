// Norm and rotation of heads, and the places of keys and values in the cache.
#pragma once
#include "device.cuh"

struct HeadsArgs {
    float *q;
    const float *k, *v;                     // null where those of the rows are in the cache already
    const float *q_norm, *k_norm, *v_norm;  // null where the family has none; `v_norm` for values as long as keys
    const float *cos, *sin;
    const Row *rows;
    const uint32_t *tables;
    void *cache;
    uint64_t page_elements, keys, values;  // elements of a page; first key and first value of this layer in it
    uint32_t table_stride, heads, kv_heads, head_dim, half_dims;
    uint32_t pairs;      // elements 2i and 2i + 1 rotate together, instead of i and i + half_dims
    uint32_t cache_f32;  // element type of the cache
    float eps;
    uint32_t value_dim, pad;  // elements of a head of values; `head_dim` is that of queries and keys
};
static_assert(sizeof(HeadsArgs) == 152, "as in args.rs");

// The factor of a norm by the sum of a head's squares.
__device__ __forceinline__ float head_factor_of(const HeadsArgs &args, float squares) {
    return __frcp_rn(__fsqrt_rn(__fdiv_rn(squares, (float)args.head_dim) + args.eps));
}

// Factor of the norm of one head; 1 without a norm.
__device__ __forceinline__ float head_factor(
    const HeadsArgs &args, const float *x, const float *weight, uint32_t lane) {
    if (weight == nullptr) return 1.0f;
    float sum = 0.0f;
    for (uint32_t i = lane; i < args.head_dim; i += WARP) sum = __fmaf_rn(x[i], x[i], sum);
    return head_factor_of(args, warp_sum(sum));
}

// Norm of one head of `dim` elements and rotation of `half` pairs of them, by a warp; `put(i, v)` takes element i.
template <typename Put>
__device__ __forceinline__ void turn_head(
    const HeadsArgs &args, uint32_t row, const float *x, const float *weight, uint32_t dim, uint32_t half, Put put) {
    const uint32_t lane = threadIdx.x % WARP;
    const float factor = head_factor(args, x, weight, lane);
    const auto at = [&](uint32_t i) {
        return weight == nullptr ? x[i] : __fmul_rn(__fmul_rn(x[i], factor), weight[i]);
    };
    const auto first = [&](uint32_t i) { return args.pairs ? 2 * i : i; };
    const auto second = [&](uint32_t i) { return args.pairs ? 2 * i + 1 : i + half; };
    // Two pairs a lane, so that what they take is on its way at once.
    constexpr int AHEAD = 2;
    for (uint32_t start = lane; start < half; start += AHEAD * WARP) {
        float c[AHEAD], s[AHEAD], a[AHEAD], b[AHEAD];
#pragma unroll
        for (uint32_t j = 0, i = start; j < AHEAD; j++, i += WARP) {
            if (i >= half) break;
            c[j] = args.cos[row * half + i], s[j] = args.sin[row * half + i];
            a[j] = at(first(i)), b[j] = at(second(i));
        }
#pragma unroll
        for (uint32_t j = 0, i = start; j < AHEAD; j++, i += WARP) {
            if (i >= half) break;
            put(first(i), __fmaf_rn(a[j], c[j], -__fmul_rn(b[j], s[j])));
            put(second(i), __fmaf_rn(a[j], s[j], __fmul_rn(b[j], c[j])));
        }
    }
    for (uint32_t i = 2 * half + lane; i < dim; i += WARP) put(i, at(i));
}
