// Copies of runs of bytes from device memory to shared memory, in flight while their warp does something else.
// Lanes make them, 16 bytes each, and count them in groups.
#pragma once
#include "device.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Called by a whole warp; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_lanes(uint32_t to, const uint8_t *from, uint32_t bytes) {
    const uint32_t own = threadIdx.x % WARP * 16, at = to + own;
    from += own;
    for (uint32_t i = 0; i + own < bytes; i += WARP * 16) {
        asm volatile(
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at + i), "l"(__cvta_generic_to_global(from + i))
            : "memory");
    }
}

// By one lane each, OFFSET bytes behind both addresses.
template <int OFFSET>
__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %2], 16;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "n"(OFFSET)
        : "memory");
}

__device__ __forceinline__ void copy_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

__device__ __forceinline__ void copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// 16 bytes, or as many zeros.
__device__ __forceinline__ void copy_or_clear(void *to, const void *from, bool exists) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
        : "memory");
}

// Ends a group of such copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until the warp has at most so many groups on their way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}

template <typename V>
__device__ __forceinline__ V load_shared_as(uint32_t at) {
    V v;
    if constexpr (sizeof(V) == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    if constexpr (sizeof(V) == 4) asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    if constexpr (sizeof(V) == 8) asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    if constexpr (sizeof(V) == 16)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
