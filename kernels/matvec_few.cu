// Products of two or four rows of activations, which share what is unpacked of the weights.
#include "common/matvec.cuh"

// Blocks of a processor that registers leave room for; other chips' code would spill with as few.
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT_OF_TWO = 4, RESIDENT_OF_FOUR = 3;
#else
constexpr int RESIDENT_OF_TWO = 2, RESIDENT_OF_FOUR = 2;
#endif

MATVEC_OF_TWO(matvec_2_q4_k, 2, RESIDENT_OF_TWO, Q4_K, Q6_K)
MATVEC_OF_TWO(matvec_2_q5_k, 2, RESIDENT_OF_TWO, Q5_K, Q6_K)
MATVEC(matvec_2_f32, 2, RESIDENT_OF_TWO, F32)
MATVEC(matvec_2_f16, 2, RESIDENT_OF_TWO, F16)
MATVEC(matvec_2_bf16, 2, RESIDENT_OF_TWO, BF16)
MATVEC(matvec_2_q8_0, 2, RESIDENT_OF_TWO, Q8_0)
MATVEC(matvec_2_q4_0, 2, RESIDENT_OF_TWO, Q4_0)
MATVEC(matvec_2_q4_1, 2, RESIDENT_OF_TWO, Q4_1)
MATVEC(matvec_2_q5_0, 2, RESIDENT_OF_TWO, Q5_0)
MATVEC(matvec_2_q5_1, 2, RESIDENT_OF_TWO, Q5_1)
MATVEC(matvec_2_q2_k, 2, RESIDENT_OF_TWO, Q2_K)
MATVEC(matvec_2_q3_k, 2, RESIDENT_OF_TWO, Q3_K)
MATVEC(matvec_2_iq4_nl, 2, RESIDENT_OF_TWO, IQ4_NL)
MATVEC(matvec_2_iq4_xs, 2, RESIDENT_OF_TWO, IQ4_XS)
MATVEC(matvec_2_mxfp4, 2, RESIDENT_OF_TWO, MXFP4)
MATVEC(matvec_2_nvfp4, 2, RESIDENT_OF_TWO, NVFP4)
MATVEC(matvec_2_bytes, 2, RESIDENT_OF_TWO, BYTES)

MATVEC_OF_TWO(matvec_4_q4_k, 4, RESIDENT_OF_FOUR, Q4_K, Q6_K)
MATVEC_OF_TWO(matvec_4_q5_k, 4, RESIDENT_OF_FOUR, Q5_K, Q6_K)
MATVEC(matvec_4_f32, 4, RESIDENT_OF_FOUR, F32)
MATVEC(matvec_4_f16, 4, RESIDENT_OF_FOUR, F16)
MATVEC(matvec_4_bf16, 4, RESIDENT_OF_FOUR, BF16)
MATVEC(matvec_4_q8_0, 4, RESIDENT_OF_FOUR, Q8_0)
MATVEC(matvec_4_q4_0, 4, RESIDENT_OF_FOUR, Q4_0)
MATVEC(matvec_4_q4_1, 4, RESIDENT_OF_FOUR, Q4_1)
MATVEC(matvec_4_q5_0, 4, RESIDENT_OF_FOUR, Q5_0)
MATVEC(matvec_4_q5_1, 4, RESIDENT_OF_FOUR, Q5_1)
MATVEC(matvec_4_q2_k, 4, RESIDENT_OF_FOUR, Q2_K)
MATVEC(matvec_4_q3_k, 4, RESIDENT_OF_FOUR, Q3_K)
MATVEC(matvec_4_iq4_nl, 4, RESIDENT_OF_FOUR, IQ4_NL)
MATVEC(matvec_4_iq4_xs, 4, RESIDENT_OF_FOUR, IQ4_XS)
MATVEC(matvec_4_mxfp4, 4, RESIDENT_OF_FOUR, MXFP4)
MATVEC(matvec_4_nvfp4, 4, RESIDENT_OF_FOUR, NVFP4)
MATVEC(matvec_4_bytes, 4, RESIDENT_OF_FOUR, BYTES)
