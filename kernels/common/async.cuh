// Copies of runs of bytes from device memory to shared memory, in flight while their warp does something else.
//
// Long ones are bulk copies with a gate (an mbarrier) that opens when their bytes are there; on chips without those the warp copies at once.
// Short ones are made by the lanes, 16 bytes each, and counted in groups.
#pragma once
#include "device.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// By one lane of the warp that uses the gates; `__syncwarp` must follow before others wait at one.
__device__ __forceinline__ void make_gates(uint64_t *gates, int count) {
#if __CUDA_ARCH__ >= 900
    for (int i = 0; i < count; i++) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(gates + i)) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Called by a whole warp; addresses and `bytes` are multiples of 16. The warp has read what stood at `to` before.
__device__ __forceinline__ void start_copy(uint8_t *to, const uint8_t *from, uint32_t bytes, uint64_t *gate) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % WARP != 0) return;
    const uint32_t at = shared_address(gate);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(at)
                 : "memory");
#else
    for (uint32_t i = threadIdx.x % WARP * 16; i < bytes; i += WARP * 16) {
        *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
    }
    __syncwarp();
#endif
}

// Waits for the copy number `phase` (0, 1, 2, ... at this gate).
__device__ __forceinline__ void wait_copy(const uint64_t *gate, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
    uint32_t open = 0;
    while (!open) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(open)
            : "r"(shared_address(gate)), "r"(phase & 1)
            : "memory");
    }
#endif
}

// Called by a whole warp; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_lanes(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    const uint32_t own = threadIdx.x % WARP * 16, at = shared_address(to) + own;
    from += own;
    for (uint32_t i = 0; i + own < bytes; i += WARP * 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at + i), "l"(__cvta_generic_to_global(from + i)) : "memory");
    }
}

// By one lane each, OFFSET bytes behind both addresses.
template <int OFFSET>
__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)), "n"(OFFSET) : "memory");
}

__device__ __forceinline__ void copy_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

__device__ __forceinline__ void copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

// Ends a group of such copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until the warp has at most so many groups on their way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}
