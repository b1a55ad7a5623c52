// Products of one row of activations.
#include "common/matvec.cuh"

// Blocks of a processor that registers leave room for; other chips' code would spill with as few.
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT = 4;
#else
constexpr int RESIDENT = 3;
#endif

MATVEC_OF_TWO(matvec_q4_k, 1, RESIDENT, Q4_K, Q6_K)
MATVEC_OF_TWO(matvec_q5_k, 1, RESIDENT, Q5_K, Q6_K)
MATVEC(matvec_f32, 1, RESIDENT, F32)
MATVEC(matvec_f16, 1, RESIDENT, F16)
MATVEC(matvec_bf16, 1, RESIDENT, BF16)
MATVEC(matvec_q8_0, 1, RESIDENT, Q8_0)
MATVEC(matvec_q4_0, 1, RESIDENT, Q4_0)
MATVEC(matvec_q4_1, 1, RESIDENT, Q4_1)
MATVEC(matvec_q5_0, 1, RESIDENT, Q5_0)
MATVEC(matvec_q5_1, 1, RESIDENT, Q5_1)
MATVEC(matvec_q2_k, 1, RESIDENT, Q2_K)
MATVEC(matvec_q3_k, 1, RESIDENT, Q3_K)
MATVEC(matvec_iq4_nl, 1, RESIDENT, IQ4_NL)
MATVEC(matvec_iq4_xs, 1, RESIDENT, IQ4_XS)
MATVEC(matvec_mxfp4, 1, RESIDENT, MXFP4)
MATVEC(matvec_nvfp4, 1, RESIDENT, NVFP4)
MATVEC(matvec_bytes, 1, RESIDENT, BYTES)

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matvec_any(const __grid_constant__ MatvecArgs args, Shape) {
    __shared__ Space<1> space;
    const Segment &segment = own_segment(args);
    by_type(segment.matrix.dtype, [&](auto type) { multiply<decltype(type)::value, 1>(args, segment, space); });
}
