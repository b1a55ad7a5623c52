// The blocks of a cluster: shared memory of one another, and a barrier in each that all of them arrive at (PTX: mapa,
// mbarrier with cluster scope). Chips have clusters from compute capability 9.0 on.
#pragma once
#include "ptx/mbarrier.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t address_in(uint32_t block, uint32_t at) {
    uint32_t other;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(at), "r"(block));
    return other;
}

__device__ __forceinline__ float load_from(uint32_t block, uint32_t at) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_in(block, at)) : "memory");
    return v;
}

// By all threads that use it, once those of a block have come here together: waits for all BLOCKS, for a barrier that
// was made for so many arrivals. What each block wrote to its shared memory is visible then.
template <uint32_t BLOCKS>
__device__ __forceinline__ void meet_cluster(uint32_t barrier, uint32_t parity) {
    if (threadIdx.x < BLOCKS) {
        asm volatile(
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in(threadIdx.x, barrier))
            : "memory");
    }
    uint32_t is_over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], "
                     "%2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(is_over)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!is_over);
}

#endif
