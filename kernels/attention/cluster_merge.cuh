// How the blocks of a row's splits, which are a cluster, merge them: each has some of the results, in 8-bit blocks, and
// is sent its elements of every part. The sums are those of `merge_splits` in the same order.
#pragma once
#include "attention/decode.cuh"
#include "ptx/cluster.cuh"

// Before compute capability 9.0 there are no clusters, and the same kernels merge as others do.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
#define CLUSTER __cluster_dims__(SHORT_SPLITS, 1, 1)
#else
constexpr bool HAS_CLUSTERS = false;
#define CLUSTER
#endif

// Elements of a block of 8-bit values.
constexpr uint32_t BLOCK = 32;

template <uint32_t DIM, bool IN_CLUSTER>
struct ClusterMerge {
    __device__ __forceinline__ void begin() const {}
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ void store_to(uint32_t block, uint32_t at, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in(block, at)), "f"(v) : "memory");
}

// Block `r` of the cluster has 8-bit blocks r, r + 8, and so on, of the row's heads.
template <uint32_t DIM>
struct ClusterMerge<DIM, true> {
    // What all blocks send: of each split its elements here, and maximum and sum of each head.
    struct Sent {
        float parts[SHORT_SPLITS][COLUMNS * DIM / SHORT_SPLITS];
        float2 states[SHORT_SPLITS][COLUMNS];
        uint64_t barrier;
    };
    Sent *sent;

    // Before anything else of the block.
    __device__ __forceinline__ void begin() {
        __shared__ __align__(16) Sent memory;
        sent = &memory;
        if (threadIdx.x == 0) {
            make_barrier(shared_address(&sent->barrier), SHORT_SPLITS);
            publish_barriers();
        }
        __syncthreads();
        asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    }

    // By all threads, before anything is sent: all blocks have begun.
    __device__ __forceinline__ void meet() const { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

    // Sends the block's split.
    __device__ __forceinline__ void send(
        uint32_t heads, const float (&out)[MIXED<DIM>][4], float2 top, float2 total) const {
        const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, split = blockIdx.x;
        const uint32_t parts = shared_address(sent->parts[split]);
#pragma unroll
        for (uint32_t e = 0; e < MIXED<DIM>; e++) {
            const uint32_t element = (warp + e * WARPS) * TILE + lane / 4;
            if (element >= DIM) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t head = lane % 4 * 2 + i % 2, at = head * DIM + element + i / 2 * 8, block = at / BLOCK;
                if (head >= heads) continue;
                store_to(block % SHORT_SPLITS, parts + (block / SHORT_SPLITS * BLOCK + at % BLOCK) * 4, out[e][i]);
            }
        }
        if (warp != 0 || lane >= COLUMNS / 2) return;
        const uint32_t states = shared_address(sent->states[split] + 2 * lane);
#pragma unroll
        for (uint32_t block = 0; block < SHORT_SPLITS; block++) {
            store_to(block, states, top.x), store_to(block, states + 4, total.x);
            store_to(block, states + 8, top.y), store_to(block, states + 12, total.y);
        }
    }

    // Waits for all that was sent, and writes the block's results; every warp has some, or nothing to do.
    template <bool PLAIN>
    __device__ __forceinline__ void finish(const AttentionArgs &args, uint32_t row, uint32_t first_head, uint32_t heads,
        uint32_t begin, uint32_t splits) const {
        __syncthreads();
        meet_cluster<SHORT_SPLITS>(shared_address(&sent->barrier), 0);
        const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, block = warp * SHORT_SPLITS + blockIdx.x,
                       at = block * BLOCK + lane;
        if (at >= heads * DIM) return;
        const uint32_t head = at / DIM;
        float top = -INFINITY, out = 0.0f, sum = 0.0f;
        for (uint32_t split = begin; split < splits; split++) top = fmaxf(top, sent->states[split][head].x);
        for (uint32_t split = begin; split < splits; split++) {
            const float2 state = sent->states[split][head];
            const float factor = power(state.x - top);
            out = __fmaf_rn(sent->parts[split][warp * BLOCK + lane], factor, out),
            sum = __fmaf_rn(state.y, factor, sum);
        }
        const float total = __fadd_rn(sum, PLAIN ? 0.0f : sink_weight(args, first_head + head, top));
        emit_blocks(args.out, row, first_head * DIM + at, args.in.heads * DIM, __fdiv_rn(out, total));
    }
};

#endif
