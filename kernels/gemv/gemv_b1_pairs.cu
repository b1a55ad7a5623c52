// Products of one row of activations with matrices of two types, as files have them for queries, keys and values: those
// of gemv_b1.cu apart.
#include "gemv/gemv_b1.cuh"

#define GEMV_B1_PAIR(family, file, name, TYPE, OTHER) GEMV_OF_TYPES(name, TYPE, OTHER)
#include "kernels.def"
