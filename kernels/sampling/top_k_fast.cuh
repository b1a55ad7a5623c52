// Drawing from few candidates where nothing changes the logits: each block tells but the maxima of its stretches, and
// one of them takes the candidates from where those are.
#pragma once
#include <float.h>

#include "sampling/top_k.cuh"

// Maxima that a thread takes; parts of a row that goes this way.
constexpr uint32_t MAXIMA = 8, LEAST_PARTS = 8, MOST_PARTS = MAXIMA * THREADS / STRETCHES;
// The maximum of a stretch without a logit that can be drawn; 0 is not there yet. Those of true logits are larger.
constexpr uint32_t NO_LOGIT = 1;

__device__ __forceinline__ bool is_quick(const SampleArgs &args, const Draw &draw) {
    return draw.changes == 0 && args.parts >= LEAST_PARTS && args.parts <= MOST_PARTS;
}

// The maxima of a row, some for each thread, once all blocks have told them; they are cleared for the next step.
__device__ __forceinline__ void await_maxima(uint32_t *maxima, uint32_t count, uint32_t (&own)[MAXIMA]) {
    bool missing;
    do {
        missing = false;
#pragma unroll
        for (uint32_t i = 0; i < MAXIMA; i++) {
            const uint32_t at = i * THREADS + threadIdx.x;
            own[i] = NO_LOGIT;
            if (at < count) own[i] = *(volatile uint32_t *)(maxima + at);
        }
#pragma unroll
        for (uint32_t i = 0; i < MAXIMA; i++) missing |= own[i] == 0;
    } while (missing);
#pragma unroll
    for (uint32_t i = 0; i < MAXIMA; i++) {
        if (i * THREADS + threadIdx.x < count) maxima[i * THREADS + threadIdx.x] = 0;
    }
}

// The lane's logits of a stretch, of which the vocabulary has `left` from its start on.
__device__ __forceinline__ void load_stretch(const float *from, uint32_t left, float (&v)[STRETCH / WARP]) {
    const uint32_t lane = threadIdx.x % WARP;
    from += lane;
#pragma unroll
    for (uint32_t i = 0; i < STRETCH / WARP; i++) v[i] = i * WARP + lane < left ? __ldcg(from + i * WARP) : -INFINITY;
}

// The keys of logits from `least` on, of the stretches in `s.listed`, or of all where there are more than fit.
struct Stretches {
    const Scratch &s;
    const float *logits;
    uint32_t vocab, count;
    float least;
    bool all;

    template <typename Use>
    __device__ __forceinline__ void operator()(const Use &use) const {
        constexpr uint32_t AT_ONCE = 6, EACH = STRETCH / WARP, WARPS = THREADS / WARP;
#pragma unroll 1
        for (uint32_t first = threadIdx.x / WARP; first < count; first += AT_ONCE * WARPS) {
            float v[AT_ONCE][EACH];
            uint32_t start[AT_ONCE];
#pragma unroll
            for (uint32_t n = 0; n < AT_ONCE; n++) {
                const uint32_t at = first + n * WARPS;
                start[n] = at < count ? min((all ? at : s.listed[at]) * STRETCH, vocab) : vocab;
                load_stretch(logits + start[n], vocab - start[n], v[n]);
            }
            if (all) {
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE * EACH; i++)
                    use(key_of(v[i / EACH][i % EACH], start[i / EACH] + i % EACH * WARP + threadIdx.x % WARP));
                continue;
            }
            // A lane has few: the last is at hand, others are asked for again.
            uint32_t hits = 0;
            float logit = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE * EACH; i++) {
                const float other = v[i / EACH][i % EACH];
                if (other >= least) hits |= 1u << i, logit = other;
            }
#pragma unroll 1
            for (bool is_last = true; hits != 0; is_last = false) {
                const uint32_t i = 31 - __clz(hits),
                               token =
                                   s.listed[first + i / EACH * WARPS] * STRETCH + i % EACH * WARP + threadIdx.x % WARP;
                use(key_of(is_last ? logit : __ldcg(logits + token), token));
                hits ^= 1u << i;
            }
        }
    }
};

// The block that began last, of a row whose others are then running: waits for the maxima, and draws.
__device__ __forceinline__ uint32_t draw_stretches(
    const SampleArgs &args, Scratch &s, uint32_t row, const float *logits, uint32_t vocab, uint32_t k, bool rehearses) {
    const uint32_t count = args.parts * STRETCHES;
    uint32_t maxima[MAXIMA];
    if (rehearses) {
#pragma unroll
        for (uint32_t i = 0; i < MAXIMA; i++) {
            const uint32_t at = i * THREADS + threadIdx.x;
            maxima[i] = at < count ? count - at : 0;
        }
    } else {
        await_maxima(args.maxima + (size_t)row * count, count, maxima);
    }
    uint32_t own = 0;
#pragma unroll
    for (uint32_t i = 0; i < MAXIMA; i++) own = max(own, maxima[i]);
    // That many threads have a maximum from there on; the candidates are in the stretches of those.
    const uint32_t bound = max(bound_of(s, own, k), (uint32_t)NO_LOGIT + 1);
#pragma unroll
    for (uint32_t i = 0; i < MAXIMA; i++) {
        if (maxima[i] < bound) continue;
        const uint32_t place = atomicAdd(&s.stretches, 1);
        if (place < LISTED) s.listed[place] = i * THREADS + threadIdx.x;
    }
    __syncthreads();
    const bool all = s.stretches > LISTED;
    // Any number, where fewer maxima are there than candidates are asked for.
    const float least = rehearses ? INFINITY : bound > NO_LOGIT + 1 ? logit_of((Key)bound << 32) : -FLT_MAX;
    uint32_t found = collect(
        s, rehearses ? NONE : bound, k, LIST, Stretches{s, logits, vocab, all ? count : s.stretches, least, all});
    if (rehearses) {
        // Any candidates.
        if (threadIdx.x < k) s.keys[threadIdx.x] = key_of(-(float)threadIdx.x, threadIdx.x);
        found = k;
        __syncthreads();
    }
    return finish(s, found, k);
}

// Tells the maxima of the block's stretches, some for each warp; the row's last block to begin returns true, with its
// token.
__device__ __forceinline__ bool quick(const SampleArgs &args, Scratch &s, uint32_t row, uint32_t part,
    const float *logits, uint32_t k, bool rehearses, uint32_t &token) {
    constexpr uint32_t EACH = STRETCHES / (THREADS / WARP);
    // Who rehearses loads nothing.
    const uint32_t vocab = rehearses ? 0 : args.vocab;
    const uint32_t stretch = part * STRETCHES + threadIdx.x / WARP * EACH;
    float v[EACH][STRETCH / WARP];
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        const uint32_t start = min((stretch + n) * STRETCH, vocab);
        load_stretch(logits + start, vocab - start, v[n]);
    }
    uint32_t *maxima = args.maxima + (size_t)row * args.parts * STRETCHES + stretch;
#pragma unroll
    for (uint32_t n = 0; n < EACH; n++) {
        // What is not a number is no maximum.
        float own = v[n][0];
#pragma unroll
        for (uint32_t i = 1; i < STRETCH / WARP; i++) own = fmaxf(own, v[n][i]);
        const uint32_t most = __reduce_max_sync(ALL_LANES, max(ordered(own), (uint32_t)NO_LOGIT));
        if (threadIdx.x % WARP == 0 && !rehearses) *(volatile uint32_t *)(maxima + n) = most;
    }
    if (part != args.parts - 1) return false;
    token = draw_stretches(args, s, row, logits, vocab, k, rehearses);
    return true;
}
