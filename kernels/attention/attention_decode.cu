// Steps of attention over keys and values of f16 whose contexts have many splits.
#include "attention/decode_walk.cuh"

#define ATTENTION_DECODE(family, file, name, DIM, ANY_FORM)             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)            \
        name(const __grid_constant__ AttentionArgs args, Shape shape) { \
        attend<Buffers<DIM>, ANY_FORM>(args, shape);                    \
    }
#include "kernels.def"
