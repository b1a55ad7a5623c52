// A column of a head's matrix in the registers of four lanes, on its way through rows: lane `part` has of each 16
// elements of a key those from 4 part on. Sums go by elements, then by lanes, so every kernel that takes rows has the
// same bits.
#pragma once
#include "quant/activation.cuh"
#include "recurrent/stretch.cuh"

constexpr int PARTS = 4, BLOCK = 16;
// Columns of a warp.
constexpr int WARP_COLUMNS = WARP / PARTS;

// ln(1 + exp(x))
__device__ __forceinline__ float softplus(float x) { return __fadd_rn(fmaxf(x, 0.0f), log1pf(expf(-fabsf(x)))); }

// The sum over the lanes that share a column.
__device__ __forceinline__ float sum_of_parts(const float (&sums)[PARTS]) {
    float sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, WARP_COLUMNS));
    return __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2 * WARP_COLUMNS));
}

template <int KEYS>
using Column = float[KEYS / PARTS];

// From the first row of the column on; null for zeros.
template <int KEYS>
__device__ __forceinline__ void load_column(const float *from, uint32_t part, uint32_t key_dim, Column<KEYS> &column) {
#pragma unroll
    for (int i = 0; i < KEYS / PARTS; i++) {
        const uint32_t k = i / 4 * BLOCK + 4 * part + i % 4;
        column[i] = from != nullptr && k < key_dim ? from[(size_t)k * BLOCK] : 0.0f;
    }
}

template <int KEYS>
__device__ __forceinline__ void store_column(const Column<KEYS> &column, uint32_t part, uint32_t key_dim, float *to) {
#pragma unroll
    for (int i = 0; i < KEYS / PARTS; i++) {
        const uint32_t k = i / 4 * BLOCK + 4 * part + i % 4;
        if (k < key_dim) to[(size_t)k * BLOCK] = column[i];
    }
}

// Of a record, the first row of column `col` of a head's matrix, which has blocks of 16 columns.
__device__ __forceinline__ uint64_t column_at(
    uint64_t state, uint32_t head, uint32_t value_dim, uint32_t key_dim, uint32_t col) {
    const uint32_t blocks = (value_dim + BLOCK - 1) / BLOCK;
    return state + ((uint64_t)head * blocks + col / BLOCK) * key_dim * BLOCK + col % BLOCK;
}

// How much of a matrix is kept, and how much of the values enters: of a row's decay and strength, by what its head adds
// to the one and multiplies it with. No strength for a state space, where the step is that.
struct Entering {
    float kept, strength;

    __device__ __forceinline__ Entering(float decay, float strength, bool is_delta, float bias, float rate) {
        const float step = softplus(__fadd_rn(decay, bias));
        kept = expf(__fmul_rn(rate, step));
        this->strength = is_delta ? sigmoid_of(strength) : step;
    }
};

// What a row does to a head's matrix.
struct Gates {
    float kept, strength;  // how much of the matrix stays, and how much of the values enters
    bool is_delta;         // by the delta rule
    float skip;            // factor on values that are added to the result
};

// The lane's elements of each 16 of a row in shared memory, which is filled with zeros up to the elements of a key.
__device__ __forceinline__ const float4 *own_elements(const float *row, uint32_t part) {
    return reinterpret_cast<const float4 *>(row) + part;
}

// Takes a column through a row, whose elements `key` and `query` give by their sixteens; the row's result.
template <int KEYS, typename Key, typename Query>
__device__ __forceinline__ float take_row(
    const Key &key, const Query &query, float value, const Gates &gates, Column<KEYS> &column) {
    float known[PARTS] = {}, sums[PARTS] = {};
#pragma unroll
    for (int j = 0; j < KEYS / BLOCK; j++) {
        const float4 k = key(j);
        const float elements[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            column[4 * j + e] = __fmul_rn(column[4 * j + e], gates.kept);
            known[e] = __fmaf_rn(column[4 * j + e], elements[e], known[e]);
        }
    }
    const float entering = gates.is_delta ? __fsub_rn(value, sum_of_parts(known)) : value;
    const float added = __fmul_rn(entering, gates.strength);
#pragma unroll
    for (int j = 0; j < KEYS / BLOCK; j++) {
        const float4 k = key(j), q = query(j);
        const float elements[4] = {k.x, k.y, k.z, k.w}, factors[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            column[4 * j + e] = __fmaf_rn(elements[e], added, column[4 * j + e]);
            sums[e] = __fmaf_rn(column[4 * j + e], factors[e], sums[e]);
        }
    }
    return __fmaf_rn(gates.skip, value, sum_of_parts(sums));
}
