// Attention of prompts over keys and values of f16.
#include "attention/prefill.cuh"

#define ATTENTION_PREFILL(family, file, name, DIM)                                \
    extern "C" __global__ void __launch_bounds__(THREADS<DIM>, DIM > 128 ? 1 : 2) \
        name(const __grid_constant__ AttentionArgs args, Shape shape) {           \
        attend<Stages<DIM>>(args, shape);                                         \
    }
#include "kernels.def"
