// Products of two or four rows of activations, which share what is unpacked of the weights.
#include "gemv/gemv.cuh"

// Blocks of an SM that registers leave room for; other chips' code would spill with as few.
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT_OF_TWO = 4, RESIDENT_OF_FOUR = 3;
#else
constexpr int RESIDENT_OF_TWO = 2, RESIDENT_OF_FOUR = 2;
#endif

#define GEMV_SMALL_BATCH(family, file, name, BATCH, TYPE, OTHER)                                               \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, BATCH == 2 ? RESIDENT_OF_TWO : RESIDENT_OF_FOUR) \
        name(const __grid_constant__ MatvecArgs args, Shape) {                                                 \
        __shared__ SharedStorage<BATCH> space;                                                                 \
        const Segment &segment = own_segment(args);                                                            \
        if (TYPE == OTHER || segment.matrix.dtype == TYPE) return multiply<TYPE, BATCH>(args, segment, space); \
        return multiply<OTHER, BATCH>(args, segment, space);                                                   \
    }
#include "kernels.def"
