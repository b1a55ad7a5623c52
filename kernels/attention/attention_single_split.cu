// Attention of rows whose context is one split (single_split.cuh): with norms of heads and with floats of the result,
// or plain, without code for either.
#include "attention/single_split.cuh"

#define ATTENTION_SINGLE_SPLIT(family, file, name, DIM, PLAIN)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ AttentionArgs args, Shape) { \
        attend_single_split<DIM, PLAIN>(args);                                                                         \
    }
#include "kernels.def"
