// The highest logit of every output, and the end of a step. NaN and minus infinity are never chosen; of equals the lowest token wins.
#include "common/device.cuh"

struct ArgmaxArgs {
    const float *logits;
    unsigned long long *parts;  // [output][PARTS]
    const uint32_t *serial;
    uint32_t *host_tokens;  // mapped; NONE where no logit is usable
    uint32_t *host_done;    // mapped; the serial number of the step, written last
    uint32_t vocab, pad;
};

constexpr int PARTS = 64;
constexpr int THREADS = 256;
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

extern "C" __global__ void __launch_bounds__(THREADS) argmax(ArgmaxArgs args, Shape) {
    __shared__ unsigned long long keys[THREADS / WARP];
    wait_for_producers();
    const float *logits = args.logits + (size_t)blockIdx.y * args.vocab;
    unsigned long long key = 0;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < args.vocab; i += PARTS * THREADS) key = max(key, key_of(logits[i], i));
    key = warp_largest(key);
    if (threadIdx.x % WARP == 0) keys[threadIdx.x / WARP] = key;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    key = warp_largest(threadIdx.x < THREADS / WARP ? keys[threadIdx.x] : 0);
    if (threadIdx.x == 0) args.parts[(size_t)blockIdx.y * PARTS + blockIdx.x] = key;
}

// One block for all outputs: the host may read the tokens once it sees the serial number.
extern "C" __global__ void __launch_bounds__(THREADS) step_end(ArgmaxArgs args, Shape shape) {
    wait_for_producers();
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t output = threadIdx.x / WARP; output < shape.outputs; output += THREADS / WARP) {
        unsigned long long key = 0;
        for (uint32_t i = lane; i < PARTS; i += WARP) key = max(key, args.parts[(size_t)output * PARTS + i]);
        key = warp_largest(key);
        if (lane == 0) {
            args.host_tokens[output] = key == 0 ? NONE : ~(uint32_t)key;
            __threadfence_system();
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    *(volatile uint32_t *)args.host_done = *args.serial;
}
