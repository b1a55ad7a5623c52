// Barriers in shared memory that count arrivals and the bytes of copies (PTX: mbarrier), and copies of rows that arrive
// at one: what chips have from compute capability 9.0 on.
#pragma once
#include "ptx/cp_async.cuh"

__device__ __forceinline__ void make_barrier(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers known to copies, which run beside the threads.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// Until the phase with this parity has ended.
__device__ __forceinline__ void wait_phase(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred ended;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n@ended "
                 "bra.uni done;\nbra.uni again;\ndone:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// True for one lane of the warp, in a way that tells the compiler so.
__device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected != 0;
}

// By one lane: arrives at the barrier, which then waits for so many bytes of copies too.
__device__ __forceinline__ void announce(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The policy of what is read once a step: the first to leave the cache, where code and activations then stay.
constexpr unsigned long long READ_ONCE = 0x12f0000000000000ull;

// By one lane: copies a run of weights, whose addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_run(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "l"(READ_ONCE)
        : "memory");
}

// Copies ROWS such runs by one lane of a warp to places `stride` bytes apart, with one arrival at `barrier`: runs from
// `from` on, `distance` bytes apart, of which those past number `last` are that one again. One lane for all, as copies
// take uniform registers.
template <uint32_t ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, uint32_t stride, uint32_t bytes, uint32_t barrier,
    const uint8_t *from, uint32_t distance, uint32_t last) {
    if (elect_lane()) {
        announce(barrier, ROWS * bytes);
#pragma unroll
        for (uint32_t i = 0; i < ROWS; i++)
            copy_run(to + i * stride, from + (size_t)min(i, last) * distance, bytes, barrier);
    }
    __syncwarp();
}

// By one lane: copies a run of what producers wrote, likewise.
__device__ __forceinline__ void copy_written(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

// A barrier of so many threads of the block, one of sixteen by number.
template <uint32_t NUMBER, uint32_t THREADS>
__device__ __forceinline__ void sync_threads() {
    asm volatile("barrier.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}
