// Adapters of sequences beside a model's weights (LoRA; Hu et al.): to a product y = W x of a row is added
// scale * B (A x) for each adapter of its sequence. A launch makes the sums A x of all matrices that a product's launch
// has (adapter_shrink.cu), another one adds B times them to where the outputs go (adapter_expand.cu); the product,
// which comes behind both and is on its way to shared memory meanwhile, adds itself to that. Which adapters a row has
// is looked up here, so that no launch changes when a sequence gets others. With matrices of experts, an adapter has
// A and B for each of them, one behind the other, and what is told of rows here holds for pairs of a row and an expert.
#pragma once
#include "quant/unpack.cuh"

// Blocks of steps for which an SM is to have registers: beside those of the product that comes behind where that was
// measured. For other processors the same code takes more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr uint32_t STEP_BLOCKS = 3;
#else
constexpr uint32_t STEP_BLOCKS = 2;
#endif

// What an adapter adds to the products of a matrix, or of each expert's; nothing where `rank` is 0.
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
    const float *norm;            // weights of the RMS norm that comes before; null where x has the values that count
    uint32_t cols, ranks, most, count;
    float eps;  // of the norm
    uint32_t pad;
    Activation normed;  // where the norm goes, with its factors, if the product reads it; nothing if that makes it too
    AdaptedMatrix matrices[6];
};
static_assert(sizeof(AdapterArgs) == 272, "as in args.rs");

// What of a table of experts a product reads.
struct AdaptedTable {
    const float *scale;    // a factor for each expert on all that is made of its matrix; null for none
    uint32_t each, first;  // outputs of an expert in the table, and the first of them that belongs to the product
};
static_assert(sizeof(AdaptedTable) == 16, "as in args.rs");

// The same for products of rows with the matrices of their experts, at most two.
struct ExpertAdapterArgs {
    AdapterArgs own;      // with sums and outputs for each pair
    const float *choice;  // which experts
    uint32_t chosen;      // experts a row
    uint32_t on_pairs;    // whether x has a row for each pair instead of each row of the batch
    AdaptedTable tables[2];
};
static_assert(sizeof(ExpertAdapterArgs) == 320, "as in args.rs");

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

// An adapter's pair for a matrix, as a lane of a warp has it: lanes have the adapters of a row in their order, 32 at a
// time.
struct LanePair {
    AdapterPair pair;
    float scale;
    uint32_t first, end;  // the place of its ranks among those of all adapters of the row
};

// Calls `f` with the pairs that 32 adapters have for a matrix, then with those of the next 32. Ends when `f` returns
// true, or behind the last adapter. Whole warps come here, and all lanes of one return the same.
template <typename F>
__device__ __forceinline__ void each_pairs(
    const AdapterArgs &args, const AdapterEntry *entries, const AdaptedMatrix &matrix, F f) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t before = 0;
    for (uint32_t start = 0; start < args.most; start += WARP) {
        AdapterEntry entry = {};
        if (start + lane < args.most) entry = entries[start + lane];
        LanePair own = {};
        if (entry.pairs != nullptr) own.pair = entry.pairs[matrix.matrix];
        own.scale = entry.scale;
        own.end = own.pair.rank;
#pragma unroll
        for (uint32_t step = 1; step < WARP; step *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, own.end, step);
            if (lane >= step) own.end += other;
        }
        own.end += before;
        own.first = own.end - own.pair.rank;
        if (f(own) || __any_sync(~0u, entry.pairs == nullptr)) return;
        before = __shfl_sync(~0u, own.end, WARP - 1);
    }
}

__device__ __forceinline__ size_t bytes_of_float(uint32_t type) { return type == F32 ? 4 : 2; }

// A number as it lies in memory, in the lower bits.
__device__ __forceinline__ float to_float(uint32_t type, uint32_t bits) {
    if (type == F32) return __uint_as_float(bits);
    if (type == BF16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half((unsigned short)bits));
}

__device__ __forceinline__ uint32_t load_bits(uint32_t type, const uint8_t *values, size_t at) {
    if (type == F32) return __ldg(reinterpret_cast<const uint32_t *>(values) + at);
    return __ldg(reinterpret_cast<const unsigned short *>(values) + at);
}

// Four neighbouring numbers as they lie in memory: those of 16 bits in the first two words. They are aligned as a
// whole.
__device__ __forceinline__ uint4 load_quad(uint32_t type, const uint8_t *values, size_t quad) {
    if (type == F32) return __ldg(reinterpret_cast<const uint4 *>(values) + quad);
    const uint2 both = __ldg(reinterpret_cast<const uint2 *>(values) + quad);
    return make_uint4(both.x, both.y, 0, 0);
}

__device__ __forceinline__ float4 to_floats(uint32_t type, const uint4 &w) {
    if (type == F32)
        return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w));
    if (type == BF16) {
        return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u), __uint_as_float(w.y << 16),
            __uint_as_float(w.y & 0xffff0000u));
    }
    const float2 low = __half22float2(reinterpret_cast<const __half2 &>(w.x)),
                 high = __half22float2(reinterpret_cast<const __half2 &>(w.y));
    return make_float4(low.x, low.y, high.x, high.y);
}

// Keeps what a quad stands for in its registers, so that it is made before the wait that it stands before.
__device__ __forceinline__ void keep(float4 &v) { asm volatile("" : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)); }
