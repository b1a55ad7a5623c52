// Steps of attention over keys and values of 8 bits.
#include "attention/decode_q8.cuh"
#include "attention/decode_walk.cuh"

#define ATTENTION_DECODE_Q8(family, file, name, DIM, ANY_FORM)          \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        name(const __grid_constant__ AttentionArgs args, Shape shape) { \
        attend<Q8Buffers<DIM>, ANY_FORM>(args, shape);                  \
    }
#include "kernels.def"
