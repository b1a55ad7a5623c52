// Products of one row of activations with matrices of two types, as files have them for queries, keys and values: those of matvec.cu apart.
#include "common/lone.cuh"

LONE_OF_TWO(matvec_q4_k_q5_k, LONE_BLOCKS, Q4_K, Q5_K)
LONE_OF_TWO(matvec_q2_k_q4_k, LONE_BLOCKS, Q2_K, Q4_K)
LONE_OF_TWO(matvec_q3_k_q4_k, LONE_BLOCKS, Q3_K, Q4_K)
LONE_OF_TWO(matvec_q3_k_q5_k, LONE_BLOCKS, Q3_K, Q5_K)
LONE_OF_TWO(matvec_iq4_nl_q5_k, LONE_BLOCKS, IQ4_NL, Q5_K)
LONE_OF_TWO(matvec_iq4_xs_q5_k, LONE_BLOCKS, IQ4_XS, Q5_K)
