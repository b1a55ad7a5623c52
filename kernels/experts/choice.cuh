// Experts that rows have chosen. A choice has for each row of the batch the numbers of its experts, best first, then as
// many weights. A pair is one of them: number `row * chosen + slot`; values with a row for each chosen expert stand in
// the order of pairs.
#pragma once
#include "quant/activation.cuh"

// The expert of a pair.
__device__ __forceinline__ uint32_t expert_of(const float *choice, uint32_t chosen, uint32_t pair) {
    const uint32_t row = pair / chosen;
    return __float_as_uint(choice[(size_t)row * 2 * chosen + (pair - row * chosen)]);
}

// Pairs of one expert that are multiplied together: COUNT of them, from place `first` on in the order by experts.
struct ExpertTile {
    uint32_t expert, first, count, pad;
};
static_assert(sizeof(ExpertTile) == 16, "as in args.rs");

// The rows of one projection of all experts.
struct ExpertTable {
    Matrix matrix;  // of all experts
    const float *scale,
        *bias;             // a factor for each expert, and what is added to each of its outputs; either may be null
    uint32_t each, first;  // rows of an expert in the matrix, and the first of them that belongs to the projection
    const float *added;    // what is added last, an element for each output of a pair (adapters); null for nothing
};
static_assert(sizeof(ExpertTable) == 64, "as in args.rs");

// The row of the matrix that makes output `col` of an expert.
__device__ __forceinline__ uint32_t row_of(const ExpertTable &table, uint32_t expert, uint32_t col) {
    return expert * table.each + table.first + col;
}

// What stands behind the product of a pair with the table: `width` outputs an expert.
__device__ __forceinline__ float finish_output(
    const ExpertTable &table, uint32_t expert, uint32_t pair, uint32_t width, uint32_t col, float v) {
    if (table.scale != nullptr) v = __fmul_rn(v, table.scale[expert]);
    if (table.bias != nullptr) v = __fadd_rn(v, table.bias[(size_t)expert * width + col]);
    return table.added != nullptr ? __fadd_rn(v, table.added[(size_t)pair * width + col]) : v;
}

// What is made of two products of a pair: activate(gate) * up, or the clamped form of it.
struct GatedUnit {
    Sigmoid activation;  // clamped: the slope of the sigmoid and the limit
    uint32_t is_clamped, pad;

    __device__ __forceinline__ float operator()(float gate, float up) const {
        return is_clamped ? clamped_gated(activation.linear, activation.cubic, gate, up) : gated(activation, gate, up);
    }
};
