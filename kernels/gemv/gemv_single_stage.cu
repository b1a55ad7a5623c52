// Products of one row of activations with matrices whose tiles of sixteen rows are no more than the SMs.
#include "gemv/single_stage.cuh"

constexpr int RESIDENT = 4;

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
#define GEMV_SINGLE_STAGE(family, file, name, TYPE, OTHER)                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, RESIDENT)                                          \
        name(const __grid_constant__ MatvecArgs args, Shape) {                                                   \
        __shared__ SingleStageStorage space;                                                                     \
        if (TYPE == OTHER || args.segments[0].matrix.dtype == TYPE) return gemv_single_stage<TYPE>(args, space); \
        return gemv_single_stage<OTHER>(args, space);                                                            \
    }
#include "kernels.def"
