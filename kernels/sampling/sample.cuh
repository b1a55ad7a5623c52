// What the parts of sampling share: the arguments, the block's memory, and how the blocks of a row end.
#pragma once
#include "sampling/argmax.cuh"
#include "sampling/draw.cuh"

constexpr int THREADS = 256, ITEMS = 16, PART = THREADS * ITEMS;
// Words of a part's mask, a bit for each token.
constexpr uint32_t MASK_WORDS = PART / 32;
// Words from one part's flag to the next: reads of the same line of the host's memory go one after the other, a
// microsecond each.
constexpr uint32_t FLAG_WORDS = 32;
// Most candidates of the short way, and what a block may leave for them: few, where few are asked for.
constexpr uint32_t FEW = 128, SLOTS = 256, LEAST_SLOTS = 64, FIT_LEAST = 40;
// Keys that the last block looks at closely.
constexpr uint32_t LIST = 1024;
// Stretches that the last block takes one by one; where there are more, it takes all.
constexpr uint32_t LISTED = 256;
constexpr int BINS = 256;
// Blocks that rehearse; later ones find the code that these brought.
constexpr uint32_t REHEARSERS = 256;
// Logits whose maximum a block tells where the last block then looks for candidates itself, and how many of those one
// part has.
constexpr uint32_t STRETCH = 128, STRETCHES = PART / STRETCH;
typedef unsigned long long Key;

// What the blocks of a row share; zero between steps.
struct Group {
    uint32_t arrived, ended;
    Key bins[3][BINS];
};

struct SampleArgs {
    const float *logits;
    const Draw *draws;
    const uint32_t
        *host_starts;  // mapped; where each part's adjustments start, and where the last one's end, for every output
    const Adjustment *host_adjustments;  // mapped; `most_adjustments` for every output, ascending by token
    const uint32_t *host_masks;          // mapped; MASK_WORDS for every part of every output
    const uint32_t *host_masked;         // mapped; the step whose mask each part of each output has, FLAG_WORDS apart
    Key *kept;                           // SLOTS for every part
    Group *groups;
    uint32_t *maxima;    // of the stretches of every part; zero between steps
    uint32_t *counters;  // blocks that began, rows that ended; zero between steps
    const uint32_t *serial;
    unsigned long long *host_tokens;  // mapped
    uint32_t vocab, parts, most_adjustments;
    uint32_t has_vectors;  // 1 where kernels before leave vectors in mapped memory
};
static_assert(sizeof(SampleArgs) == 112, "as in args.rs");

struct Scratch {
    union {
        float part[PART];
        struct {
            __align__(16) Key keys[LIST];
            __align__(16) Key best[FEW];
            Key ranks[FEW], masses[FEW];
            Key scores[LIST];
            float logits[FEW];
            uint16_t places[FEW], listed[LISTED];
        };
    };
    Key bins[BINS];
    __align__(16) uint32_t maxima[THREADS];
    Key warps[THREADS / WARP];
    Draw draw;
    Key missing;
    uint32_t mask[MASK_WORDS];
    uint32_t ticket, bound, count, stretches, crossing, last, fetched, range[2];
};

// The order of logits alone; 0 for what cannot be drawn.
__device__ __forceinline__ uint32_t ordered(float logit) { return (uint32_t)(key_of(logit, 0) >> 32); }

__device__ __forceinline__ float logit_of(Key key) {
    const uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

__device__ __forceinline__ Key block_largest(Scratch &s, Key key) {
    key = warp_largest(key);
    if (threadIdx.x % WARP == 0) s.warps[threadIdx.x / WARP] = key;
    __syncthreads();
    Key largest = 0;
    for (int warp = 0; warp < THREADS / WARP; warp++) largest = max(largest, s.warps[warp]);
    __syncthreads();
    return largest;
}

// Ends the block's part of a row; whether all others have ended theirs, whose results may then be read. Who rehearses
// ends nothing.
__device__ __forceinline__ bool is_last(const SampleArgs &args, Scratch &s, uint32_t row, bool rehearses) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // The block's results are there before it counts, and those of others after.
        __threadfence();
        s.last = atomicAdd(&args.groups[row].ended, rehearses ? 0 : 1) == args.parts - 1;
        __threadfence();
    }
    __syncthreads();
    return s.last;
}
