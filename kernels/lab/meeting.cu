// Blocks of a cluster that read each other's shared memory, and meet before and after: at barriers in shared memory, as
// in gemm_i8_specialized.cu, or at the cluster's own barrier. For racecheck, which sees races in the first and none in
// the second, where both give the right sums.
//
// usage: meeting shared|cluster [ROUNDS]
#include "ptx/cluster.cuh"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr uint32_t BLOCKS = 8, THREADS = 256, GRID = 2 * BLOCKS;

__device__ __forceinline__ void meet_by_hardware() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

template <bool IN_SHARED>
__global__ void __cluster_dims__(BLOCKS, 1, 1) add_up(float *out, uint32_t rounds) {
    __shared__ float own[THREADS];
    __shared__ __align__(8) uint64_t meeting;
    const uint32_t barrier = shared_address(&meeting), place = shared_address(own + threadIdx.x);
    if (threadIdx.x == 0) make_barrier(barrier, BLOCKS), publish_barriers();
    __syncthreads();
    meet_by_hardware();
    const auto meet = [&](uint32_t parity) {
        __syncthreads();
        if constexpr (IN_SHARED) meet_cluster<BLOCKS>(barrier, parity);
        else meet_by_hardware();
    };
    float sum = 0.0f;
    for (uint32_t round = 0; round < rounds; round++) {
        own[threadIdx.x] = (float)(blockIdx.x % BLOCKS + round);
        meet(0);
        for (uint32_t block = 0; block < BLOCKS; block++) sum += load_from(block, place);
        meet(1);
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
    meet_by_hardware();
}

int main(int count, char **words) {
    if (count < 2) return fprintf(stderr, "usage: meeting shared|cluster [ROUNDS]\n"), 2;
    const uint32_t rounds = count > 2 ? atoi(words[2]) : 2;
    float *out, want = 0.0f;
    cudaMalloc(&out, GRID * THREADS * sizeof(float));
    if (strcmp(words[1], "shared") == 0) add_up<true><<<GRID, THREADS>>>(out, rounds);
    else add_up<false><<<GRID, THREADS>>>(out, rounds);
    std::vector<float> sums(GRID * THREADS);
    const cudaError_t result = cudaMemcpy(sums.data(), out, sums.size() * sizeof(float), cudaMemcpyDeviceToHost);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t block = 0; block < BLOCKS; block++) want += (float)(block + round);
    }
    size_t wrong = 0;
    for (float sum : sums) wrong += sum != want;
    printf("%s: %s, %zu of %zu sums wrong\n", words[1], cudaGetErrorString(result), wrong, sums.size());
    return result != cudaSuccess || wrong > 0;
}
