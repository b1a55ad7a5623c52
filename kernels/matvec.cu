// Products of one row of activations.
#include "common/lone.cuh"

LONE_OF_TWO(matvec_q4_k, LONE_BLOCKS, Q4_K, Q6_K)
LONE_OF_TWO(matvec_q5_k, LONE_BLOCKS, Q5_K, Q6_K)
MATVEC(matvec_f32, 1, LONE_BLOCKS, F32)
MATVEC(matvec_f16, 1, LONE_BLOCKS, F16)
MATVEC(matvec_bf16, 1, LONE_BLOCKS, BF16)
LONE(matvec_q8_0, LONE_BLOCKS, Q8_0)
LONE(matvec_q4_0, LONE_BLOCKS, Q4_0)
LONE(matvec_q4_1, LONE_BLOCKS, Q4_1)
LONE(matvec_q5_0, LONE_BLOCKS, Q5_0)
LONE(matvec_q5_1, LONE_BLOCKS, Q5_1)
LONE(matvec_q2_k, LONE_BLOCKS, Q2_K)
LONE(matvec_q3_k, LONE_BLOCKS, Q3_K)
LONE(matvec_iq4_nl, LONE_BLOCKS, IQ4_NL)
LONE(matvec_iq4_xs, LONE_BLOCKS, IQ4_XS)
LONE(matvec_mxfp4, LONE_BLOCKS, MXFP4)
LONE(matvec_nvfp4, LONE_BLOCKS, NVFP4)
LONE(matvec_bytes, LONE_BLOCKS, BYTES)

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matvec_any(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ LoneSpace space;
    const Segment &segment = own_segment(args);
    by_type(segment.matrix.dtype, [&](auto type) {
        constexpr uint32_t TYPE = decltype(type)::value;
        if constexpr (IS_QUANTIZED<TYPE>) multiply_lone<TYPE>(args, segment, space);
        else multiply<TYPE, 1>(args, segment, space.space);
    });
}
