// Adapters of sequences beside a model's weights (LoRA; Hu et al.): to a product y = W x of a row is added
// scale * B (A x) for each adapter of its sequence. A launch makes the sums A x of all matrices that a product's launch
// has (adapter_shrink.cu), another one adds B times them to where the outputs go (adapter_expand.cu); the product,
// which comes behind both and is on its way to shared memory meanwhile, adds itself to that. Which adapters a row has
// is looked up here, so that no launch changes when a sequence gets others.
#pragma once
#include "quant/unpack.cuh"

// What an adapter adds to the products of a matrix; nothing where `rank` is 0.
struct AdapterPair {
    const uint8_t *down, *up;  // A in rows of the input's width, and B turned: `rank` rows of the output's width
    uint32_t rank;
    uint32_t down_type, up_type;  // F32, F16 or BF16
    float factor;                 // on what is added
};
static_assert(sizeof(AdapterPair) == 32, "as in args.rs");

// An adapter of a sequence.
struct AdapterEntry {
    const AdapterPair *pairs;  // of every matrix of the program; null behind the last adapter
    float scale;               // on what it adds
    uint32_t pad;
};
static_assert(sizeof(AdapterEntry) == 16, "as in args.rs");

// A matrix of the launch that adapters change.
struct AdaptedMatrix {
    float *out;
    uint32_t matrix;      // its number in the program
    uint32_t width;       // outputs
    uint32_t first_tile;  // of those that `adapter_expand` walks over
    float adds;           // what is added is multiplied by this; 0 where it takes the place of what is in `out`
};
static_assert(sizeof(AdaptedMatrix) == 24, "as in args.rs");

struct AdapterArgs {
    Activation x;
    const Row *rows;
    const uint32_t *outputs;      // rows of the batch that x has rows for; null for all
    const AdapterEntry *entries;  // `most` of each slot
    float *sums;                  // of each row of x `ranks` for each matrix
    uint32_t cols, ranks, most, count;
    AdaptedMatrix matrices[6];
};
static_assert(sizeof(AdapterArgs) == 224, "as in args.rs");

__device__ __forceinline__ uint32_t row_count(const AdapterArgs &args, const Shape &shape) {
    return args.outputs != nullptr ? shape.outputs : shape.rows;
}

// The adapters of a row. The lists are in place since the first kernel of the step.
__device__ __forceinline__ const AdapterEntry *entries_of(const AdapterArgs &args, uint32_t row) {
    const uint32_t at = args.outputs != nullptr ? __ldcg(args.outputs + row) : row;
    return args.entries + (size_t)__ldcg(&args.rows[at].slot) * args.most;
}

// How many rows from `row` on have the same adapters: MOST, or fewer.
template <uint32_t MOST>
__device__ __forceinline__ uint32_t rows_alike(
    const AdapterArgs &args, uint32_t row, uint32_t count, const AdapterEntry *entries) {
    uint32_t alike = 1;
    while (alike < MOST && row + alike < count && entries_of(args, row + alike) == entries) alike++;
    return alike;
}

// Calls `f` for each adapter that changes a matrix: with its pair, its scale, and the place of its sums among those of
// the matrix. Ends when `f` returns false.
template <typename F>
__device__ __forceinline__ void each_pair(
    const AdapterArgs &args, const AdapterEntry *entries, const AdaptedMatrix &matrix, F f) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < args.most; i++) {
        const AdapterPair *pairs = entries[i].pairs;
        if (pairs == nullptr) return;
        const AdapterPair &pair = pairs[matrix.matrix];
        if (pair.rank == 0) continue;
        if (!f(pair, entries[i].scale, place)) return;
        place += pair.rank;
    }
}

__device__ __forceinline__ size_t bytes_of_float(uint32_t type) { return type == F32 ? 4 : 2; }

template <typename F>
__device__ __forceinline__ void by_float_type(uint32_t type, F f) {
    switch (type) {
        case F32: f(std::integral_constant<uint32_t, F32>{}); break;
        case F16: f(std::integral_constant<uint32_t, F16>{}); break;
        default: f(std::integral_constant<uint32_t, BF16>{}); break;
    }
}

template <uint32_t TYPE>
__device__ __forceinline__ float load_float(const uint8_t *values, size_t at) {
    if constexpr (TYPE == F32) return reinterpret_cast<const float *>(values)[at];
    else if constexpr (TYPE == F16) return __half2float(reinterpret_cast<const __half *>(values)[at]);
    else return __uint_as_float((uint32_t)reinterpret_cast<const uint16_t *>(values)[at] << 16);
}

// Brings what will be read behind the block's wait near.
__device__ __forceinline__ void prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
