// What products take whose pairs are sorted by experts, for tensor cores: tiles of the pairs that `expert_order` lists
// times rows of their expert's matrices.
#pragma once
#include "experts/choice.cuh"

struct ExpertGemmArgs {
    Activation x;
    Activation gated;         // where the unit of both tables goes; x is null where there is one
    const uint32_t *order;    // pairs by experts
    const ExpertTile *tiles;  // of these
    const uint32_t *count;    // how many tiles
    ExpertTable tables[2];    // of one weight type
    float *out;               // where outputs of one table go
    GatedUnit unit;
    uint32_t cols, chosen, width, on_pairs;  // `on_pairs`: x has a row for each pair instead of each row of the batch
    uint32_t is_early, pad;                  // `is_early`: the launch before this one is grouped GEMV of the same pairs
    const float *choice;                     // of pairs that blocks sort; null where `expert_order` has
};
static_assert(sizeof(ExpertGemmArgs) == 272, "as in args.rs");

// The row of x of a pair.
__device__ __forceinline__ uint32_t x_row_of(const ExpertGemmArgs &args, uint32_t pair) {
    return args.on_pairs ? pair : pair / args.chosen;
}

// `finish_output` for one output of many pairs.
struct Finish {
    float scale = 1.0f, bias = 0.0f;
    bool has_bias;
    const float *added;

    __device__ __forceinline__ Finish(const ExpertTable &table, uint32_t expert, uint32_t width, uint32_t col)
        : has_bias(table.bias != nullptr), added(table.added) {
        if (table.scale != nullptr) scale = table.scale[expert];
        if (has_bias) bias = table.bias[(size_t)expert * width + col];
    }
    // The output that stands at `at` among those of all pairs.
    __device__ __forceinline__ float operator()(float v, size_t at) const {
        v = __fmul_rn(v, scale);
        if (has_bias) v = __fadd_rn(v, bias);
        return added != nullptr ? __fadd_rn(v, added[at]) : v;
    }
};
