// The highest logit of every output, and the end of a step.
#include "sampling/argmax.cuh"

struct ArgmaxArgs {
    const float *logits;
    unsigned long long *best;  // the highest key of each output; the first kernel of a step clears them
    const uint32_t *serial;
    unsigned long long *host_tokens;  // mapped
    uint32_t vocab;
    uint32_t has_vectors;  // 1 where kernels before leave vectors in mapped memory
};
static_assert(sizeof(ArgmaxArgs) == 40, "as in args.rs");

constexpr int PARTS = 64;
constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) argmax(ArgmaxArgs args, Shape) {
    __shared__ unsigned long long keys[THREADS / WARP];
    await_then_launch();
    const float *logits = args.logits + (size_t)blockIdx.y * args.vocab;
    unsigned long long key = 0;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < args.vocab; i += PARTS * THREADS)
        key = max(key, key_of(logits[i], i));
    key = warp_largest(key);
    if (threadIdx.x % WARP == 0) keys[threadIdx.x / WARP] = key;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    key = warp_largest(threadIdx.x < THREADS / WARP ? keys[threadIdx.x] : 0);
    if (threadIdx.x == 0) atomicMax(args.best + blockIdx.y, key);
}

// One block for all outputs.
extern "C" __global__ void __launch_bounds__(THREADS) step_end(ArgmaxArgs args, Shape shape) {
    await_then_launch();
    const uint32_t serial = *args.serial;
    for (uint32_t output = threadIdx.x; output < shape.outputs; output += THREADS) {
        const unsigned long long key = args.best[output];
        const uint32_t token = key == 0 ? NONE : ~(uint32_t)key;
        tell_token(args.host_tokens + output, serial, token, args.has_vectors != 0);
    }
}
