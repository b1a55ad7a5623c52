// Heads of the only row of a step on their way to its attention (single_split.cuh): the norm and rotation of queries
// and of the row's own key, the norm of its value, and where they go. A warp has a head, of which a lane has pairs of
// elements in registers; the weights of norms come to shared memory before the block waits.
#pragma once
#include "attention/decode.cuh"

__device__ __forceinline__ void store_shared(uint32_t at, __half v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(__half_as_ushort(v)) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t at, __half2 v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(reinterpret_cast<const uint32_t &>(v)) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t at, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}

__device__ __forceinline__ void store_byte(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ uint2 load_words(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ float2 load_pair(uint32_t at) {
    const uint2 v = load_words(at);
    return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

__device__ __forceinline__ uint64_t global_address(const void *p) { return (uint64_t)__cvta_generic_to_global(p); }

__device__ __forceinline__ float load_global(uint64_t at) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
    return v;
}

__device__ __forceinline__ void store_global(uint64_t at, __half v) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"(__half_as_ushort(v)) : "memory");
}

__device__ __noinline__ float factor_of(const HeadsArgs &in, const float *x, const float *weight) {
    return head_factor(in, x, weight, threadIdx.x % WARP);
}

// The pairs of a head, key or value that a lane has, with the places of their elements in it.
template <uint32_t DIM>
struct Pairs {
    static_assert(DIM % (2 * WARP) == 0, "every lane has as many");
    static constexpr uint32_t COUNT = DIM / 2 / WARP;
    float a[COUNT], c[COUNT];

    __device__ __forceinline__ void load(
        uint64_t from, const uint32_t (&first)[COUNT], const uint32_t (&second)[COUNT]) {
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++)
            a[j] = load_global(from + 4 * first[j]), c[j] = load_global(from + 4 * second[j]);
    }

    // The norm of what was loaded from `x`, whose weights are in shared memory too. A lane has its elements in the
    // order of `head_factor` where the halves of the head rotate together.
    __device__ __forceinline__ void norm(const HeadsArgs &in, const float *x, const float *weight,
        const uint32_t (&first)[COUNT], const uint32_t (&second)[COUNT]) {
        float factor;
        if (in.pairs == 0 && in.half_dims == DIM / 2) {
            float sum = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < COUNT; j++) sum = __fmaf_rn(a[j], a[j], sum);
#pragma unroll
            for (uint32_t j = 0; j < COUNT; j++) sum = __fmaf_rn(c[j], c[j], sum);
            factor = head_factor_of(in, warp_sum(sum));
        } else {
            factor = factor_of(in, x, weight);
        }
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++) {
            a[j] = __fmul_rn(__fmul_rn(a[j], factor), weight[first[j]]),
            c[j] = __fmul_rn(__fmul_rn(c[j], factor), weight[second[j]]);
        }
    }

    __device__ __forceinline__ void turn(
        const float (&cos)[COUNT], const float (&sin)[COUNT], uint32_t lane, uint32_t half) {
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++) {
            if (lane + j * WARP >= half) break;
            const float turned = __fmaf_rn(a[j], cos[j], -__fmul_rn(c[j], sin[j]));
            c[j] = __fmaf_rn(a[j], sin[j], __fmul_rn(c[j], cos[j])), a[j] = turned;
        }
    }
};

// The norms of heads, in shared memory: weights for queries, keys and values, one behind the other; none where they are
// PLAIN.
template <uint32_t DIM, bool PLAIN>
struct HeadNorms {
    __align__(16) float weights[PLAIN ? 1 : 3 * DIM];

    // Starts the copies of what there is, by the first warps, which the next group of copies takes along.
    __device__ __forceinline__ void start(const HeadsArgs &in, uint32_t warp, uint32_t lane) {
        const float *from = warp == 0 ? in.q_norm : warp == 1 ? in.k_norm : warp == 2 ? in.v_norm : nullptr;
        if (from == nullptr || lane >= DIM / 4) return;
        copy_16<0>(shared_address(weights + warp * DIM + lane * 4), from + lane * 4);
    }
    __device__ __forceinline__ const float *of_queries() const { return weights; }
    __device__ __forceinline__ const float *of_keys() const { return weights + DIM; }
    __device__ __forceinline__ const float *of_values() const { return weights + 2 * DIM; }
};

// Norm and rotation of a head's query, which goes to where the products read it.
template <uint32_t DIM, bool PLAIN>
__device__ __forceinline__ void put_query(Pairs<DIM> &query, const AttentionArgs &args,
    const HeadNorms<DIM, PLAIN> &norms, const float *from, const uint32_t (&first)[Pairs<DIM>::COUNT],
    const uint32_t (&second)[Pairs<DIM>::COUNT], const float (&cos)[Pairs<DIM>::COUNT],
    const float (&sin)[Pairs<DIM>::COUNT], const uint32_t (&first_to)[Pairs<DIM>::COUNT],
    const uint32_t (&second_to)[Pairs<DIM>::COUNT], uint32_t lane, uint32_t half) {
    if constexpr (!PLAIN) {
        if (args.in.q_norm != nullptr) query.norm(args.in, from, norms.of_queries(), first, second);
    }
    query.turn(cos, sin, lane, half);
#pragma unroll
    for (uint32_t j = 0; j < Pairs<DIM>::COUNT; j++) {
        store_shared(first_to[j], __float2half_rn(__fmul_rn(query.a[j], args.scale)));
        store_shared(second_to[j], __float2half_rn(__fmul_rn(query.c[j], args.scale)));
    }
}

// Norm and rotation of the position's key, or the norm of its value, which goes to the stage and to the cache.
template <uint32_t DIM, bool PLAIN>
__device__ __forceinline__ void put_key_or_value(Pairs<DIM> &own, const HeadsArgs &in,
    const HeadNorms<DIM, PLAIN> &norms, const float *from, bool is_key, const uint32_t (&first)[Pairs<DIM>::COUNT],
    const uint32_t (&second)[Pairs<DIM>::COUNT], const float (&cos)[Pairs<DIM>::COUNT],
    const float (&sin)[Pairs<DIM>::COUNT], uint32_t stage, uint64_t cache, uint32_t lane, uint32_t half) {
    if constexpr (!PLAIN) {
        const bool has_norm = (is_key ? in.k_norm : in.v_norm) != nullptr;
        if (has_norm) own.norm(in, from, is_key ? norms.of_keys() : norms.of_values(), first, second);
    }
    if (is_key) own.turn(cos, sin, lane, half);
#pragma unroll
    for (uint32_t j = 0; j < Pairs<DIM>::COUNT; j++) {
        const __half low = __float2half_rn(own.a[j]), high = __float2half_rn(own.c[j]);
        store_shared(stage + 2 * first[j], low), store_shared(stage + 2 * second[j], high);
        store_global(cache + 2 * first[j], low), store_global(cache + 2 * second[j], high);
    }
}
