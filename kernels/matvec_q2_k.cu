// Products of one row of activations with matrices in Q2_K, without rings: of whole rows, and behind a norm and of two slices, those of the gated unit, of
// queries, keys and values, and of the head.
#include "common/columns.cuh"
#include "common/whole.cuh"

constexpr uint32_t SLICES = 2;

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
extern "C" __global__ void __launch_bounds__(WARPS *WARP, 4) columns_gated(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ ColumnSpace<8> space;
    multiply_octets<SLICES, 8, true, 2>(args, args.segments[0], space);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 4) columns_plain(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ ColumnSpace<2> space;
    multiply_octets<SLICES, 2, false, 1>(args, own_segment(args), space);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 3) columns_head(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ HeadSpace space;
    multiply_head<SLICES>(args, space);
}

WHOLE(whole_q2_k, 4, Q2_K)
