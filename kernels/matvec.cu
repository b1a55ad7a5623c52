// Products of one row of activations.
#include "common/lone.cuh"

// Blocks of a processor that registers leave room for; other chips' code would spill with as few.
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT = 4;
#else
constexpr int RESIDENT = 3;
#endif

LONE_OF_TWO(matvec_q4_k, RESIDENT, Q4_K, Q6_K)
LONE_OF_TWO(matvec_q5_k, RESIDENT, Q5_K, Q6_K)
MATVEC(matvec_f32, 1, RESIDENT, F32)
MATVEC(matvec_f16, 1, RESIDENT, F16)
MATVEC(matvec_bf16, 1, RESIDENT, BF16)
LONE(matvec_q8_0, RESIDENT, Q8_0)
LONE(matvec_q4_0, RESIDENT, Q4_0)
LONE(matvec_q4_1, RESIDENT, Q4_1)
LONE(matvec_q5_0, RESIDENT, Q5_0)
LONE(matvec_q5_1, RESIDENT, Q5_1)
LONE(matvec_q2_k, RESIDENT, Q2_K)
LONE(matvec_q3_k, RESIDENT, Q3_K)
LONE(matvec_iq4_nl, RESIDENT, IQ4_NL)
LONE(matvec_iq4_xs, RESIDENT, IQ4_XS)
LONE(matvec_mxfp4, RESIDENT, MXFP4)
LONE(matvec_nvfp4, RESIDENT, NVFP4)
LONE(matvec_bytes, RESIDENT, BYTES)

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matvec_any(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ LoneSpace space;
    const Segment &segment = own_segment(args);
    by_type(segment.matrix.dtype, [&](auto type) {
        constexpr uint32_t TYPE = decltype(type)::value;
        if constexpr (IS_QUANTIZED<TYPE>) multiply_lone<TYPE>(args, segment, space);
        else multiply<TYPE, 1>(args, segment, space.space);
    });
}
