// Products of one row of activations.
#include "gemv/gemv_b1.cuh"

#define GEMV_B1_FLOAT(family, file, name, TYPE)                               \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, GEMV_B1_BLOCKS) \
        name(const __grid_constant__ MatvecArgs args, Shape) {                \
        __shared__ SharedStorage<1> space;                                    \
        multiply<TYPE, 1>(args, own_segment(args), space);                    \
    }
#define GEMV_B1(family, file, name, TYPE, OTHER) GEMV_OF_TYPES(name, TYPE, OTHER)
#include "kernels.def"

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2)
    gemv_b1_any(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ GemvB1Storage space;
    const Segment &segment = own_segment(args);
    by_type(segment.matrix.dtype, [&](auto type) {
        constexpr uint32_t TYPE = decltype(type)::value;
        if constexpr (IS_QUANTIZED<TYPE>) gemv_b1<TYPE>(args, segment, space);
        else multiply<TYPE, 1>(args, segment, space.space);
    });
}
