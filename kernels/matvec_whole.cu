// Products of one row of activations with matrices whose tiles of sixteen rows are no more than the processors.
#include "common/whole.cuh"

constexpr int RESIDENT = 4;

WHOLE_OF_TWO(whole_q4_k, RESIDENT, Q4_K, Q6_K)
WHOLE_OF_TWO(whole_q5_k, RESIDENT, Q5_K, Q6_K)
WHOLE(whole_q8_0, RESIDENT, Q8_0)
WHOLE(whole_q4_0, RESIDENT, Q4_0)
WHOLE(whole_q4_1, RESIDENT, Q4_1)
WHOLE(whole_q5_0, RESIDENT, Q5_0)
WHOLE(whole_q5_1, RESIDENT, Q5_1)
WHOLE(whole_q3_k, RESIDENT, Q3_K)
WHOLE(whole_iq4_nl, RESIDENT, IQ4_NL)
WHOLE(whole_iq4_xs, RESIDENT, IQ4_XS)
WHOLE(whole_mxfp4, RESIDENT, MXFP4)
WHOLE(whole_nvfp4, RESIDENT, NVFP4)
WHOLE(whole_bytes, RESIDENT, BYTES)
