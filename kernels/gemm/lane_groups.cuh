// A group of a row as a lane has it for integer matrix instructions each of whose columns has one group's activations:
// its codes as bytes, its factors, products, and how lanes add what they have of rows.
#pragma once
#include "gemm/pipeline.cuh"
#include "quant/mma_operands.cuh"

// The 32 codes of a group as bytes, those of Q6_K 32 too large. Where they stay IN_PLACE, upper ones of Q4_K are
// unsigned and 16 times as large.
template <int TYPE, bool IN_PLACE = false>
__device__ __forceinline__ void unpack(const Raw<TYPE> &raw, uint32_t (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == Q8_0) {
            w[i] = raw.words[i], w[4 + i] = raw.words[4 + i];
        } else if constexpr (TYPE == Q4_K && IN_PLACE) {
            w[i] = raw.words[i] & 0x0f0f0f0f, w[4 + i] = raw.words[i] & 0xf0f0f0f0;
        } else {
            w[i] = raw.words[i] & 0x0f0f0f0f, w[4 + i] = raw.words[i] >> 4 & 0x0f0f0f0f;
        }
        if constexpr (TYPE == Q5_K)
            w[i] |= raw.high[0] << (4 - i) & 0x10101010, w[4 + i] |= raw.high[0] >> i & 0x10101010;
        if constexpr (TYPE == Q6_K) {
            const int by = 4 - 2 * i;
            w[i] |= (by < 0 ? raw.high[0] >> -by : raw.high[0] << by) & 0x30303030;
            w[4 + i] |= (by < 0 ? raw.high[1] >> -by : raw.high[1] << by) & 0x30303030;
        }
    }
}

template <int TYPE>
__device__ __forceinline__ RowFactors factors_of(const Raw<TYPE> &raw) {
    if constexpr (TYPE == Q8_0) return plain_factors(reinterpret_cast<const uint8_t *>(&raw.own));
    else return load_factors<TYPE>(load_block<TYPE>(reinterpret_cast<const uint8_t *>(&raw.block)), raw.own);
}

// The products of eight values of each group, words `word` and the next, and `from`; weights are signed bytes, or
// unsigned ones.
template <bool UNSIGNED>
__device__ __forceinline__ void multiply_words(int (&c)[4], const uint32_t (&first)[8], const uint32_t (&second)[8],
    const uint32_t (&x)[8], int word, const int (&from)[4]) {
#define MULTIPLY(type)                                                                                               \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, " \
        "%11, %12, %13};"                                                                                            \
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])                                                             \
        : "r"(first[word]), "r"(second[word]), "r"(first[word + 1]), "r"(second[word + 1]), "r"(x[word]),            \
        "r"(x[word + 1]), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]))
    if constexpr (UNSIGNED) MULTIPLY("u8");
    else MULTIPLY("s8");
#undef MULTIPLY
}

__device__ __forceinline__ void store_shared(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
