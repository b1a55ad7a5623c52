// Products of one row of activations with matrices in Q2_K of two slices, behind a norm and without rings: those of the
// gated unit, of queries, keys and values, and of the head.
#include "gemv/registers.cuh"

constexpr uint32_t SLICES = 2;

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
extern "C" __global__ void __launch_bounds__(WARPS *WARP, 4)
    gemv_registers_glu(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ RegistersStorage<8> space;
    gemv_registers<SLICES, 8, true, 2>(args, args.segments[0], space);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 4)
    gemv_registers_plain(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ RegistersStorage<2> space;
    gemv_registers<SLICES, 2, false, 1>(args, own_segment(args), space);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 3)
    gemv_registers_head(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ HeadStorage space;
    gemv_registers_head_tiles<SLICES>(args, space);
}
