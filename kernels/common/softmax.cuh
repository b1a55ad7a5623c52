// Softmax over parts of the keys: what is kept of a part, and how two parts become one (Milakov and Gimelshein, "Online normalizer
// calculation for softmax").
#pragma once

struct State {
    float max, sum;
};

// Factors of the old and of the new part.
__device__ __forceinline__ float2 merge_state(State &state, float max, float sum) {
    const float top = fmaxf(state.max, max);
    const float2 factor = make_float2(expf(state.max - top), expf(max - top));
    state.sum = __fmaf_rn(state.sum, factor.x, __fmul_rn(sum, factor.y));
    state.max = top;
    return factor;
}

__device__ __forceinline__ float merge_value(float old, float mixed, float2 factor) {
    return __fmaf_rn(old, factor.x, __fmul_rn(mixed, factor.y));
}
