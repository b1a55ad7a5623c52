// The order in which logits are chosen, and how the host hears of a token. NaN and minus infinity are never chosen; of
// equals the lowest token wins.
#pragma once
#include "device.cuh"

// The token where no logit is usable.
constexpr uint32_t NONE = 0xffffffffu;

// Larger for a larger logit, then for a lower token; 0 for a logit that cannot be chosen.
__device__ __forceinline__ unsigned long long key_of(float logit, uint32_t token) {
    if (!(logit > -INFINITY)) return 0;
    // Both zeros are one number.
    const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)ordered << 32 | ~token;
}

__device__ __forceinline__ unsigned long long warp_largest(unsigned long long key) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) key = max(key, __shfl_xor_sync(ALL_LANES, key, step));
    return key;
}

// Writes an output's token into mapped memory, with the serial number of the step above it: the host takes both at
// once, so these two need no order.
//
// Where the kernels before leave vectors there too (`has_vectors`), the host reads them as soon as it has all tokens.
// They are there then. Who calls this has waited for the kernels before, by `griddepcontrol.wait` or because it began
// behind them: that wait ends once the kernel before has completed and its writes are visible to this one, and that
// kernel, whose threads all waited likewise, completes behind those before it, however early each was started. So the
// vectors come before this store in causality order, and a release at system scope hands on all that comes before it,
// not the thread's own writes alone, to the host, whose read of the token acquires.
__device__ __forceinline__ void tell_token(
    unsigned long long *host_token, uint32_t serial, uint32_t token, bool has_vectors) {
    const unsigned long long told = (unsigned long long)serial << 32 | token;
    if (has_vectors) asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(host_token), "l"(told) : "memory");
    else *(volatile unsigned long long *)host_token = told;
}
