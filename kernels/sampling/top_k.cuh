// Drawing from few candidates: each block leaves those of its part that may be among them, and the last one to do so
// filters and draws.
#pragma once
#include "ptx/mbarrier.cuh"
#include "sampling/sample.cuh"

// The `k`-th highest of the threads' numbers, or of what pairs of threads have, where `k` is small: at least `k`
// threads have as much.
__device__ __forceinline__ uint32_t bound_of(Scratch &s, uint32_t own, uint32_t k) {
    const bool pairs = k <= FIT_LEAST;
    const uint32_t count = pairs ? THREADS / 2 : THREADS, step = pairs ? 2 : 1;
    if (pairs) own = max(own, __shfl_xor_sync(ALL_LANES, own, 1));
    s.maxima[pairs ? threadIdx.x / 2 : threadIdx.x] = own;
    if (threadIdx.x == 0) s.bound = NONE, s.count = s.stretches = 0;
    __syncthreads();
    // Threads of a pair look at every other quad.
    uint32_t higher = 0;
#pragma unroll 8
    for (uint32_t i = pairs ? threadIdx.x % 2 : 0; i < count / 4; i += step) {
        const uint4 four = reinterpret_cast<const uint4 *>(s.maxima)[i];
        higher += (four.x > own) + (four.y > own) + (four.z > own) + (four.w > own);
    }
    if (pairs) higher += __shfl_xor_sync(ALL_LANES, higher, 1);
    const uint32_t least = __reduce_min_sync(ALL_LANES, higher < k ? own : NONE);
    if (threadIdx.x % WARP == 0) atomicMin(&s.bound, least);
    __syncthreads();
    return s.bound;
}

// Collects in `s.keys`, in any order, the `k` highest keys and perhaps some more, at most `most`; how many. `each(f)`
// calls `f` with every key of the thread; no key but 0, which stands for none, comes twice. At least `k` keys, if there
// are as many, are of logits from `bound` on; `s.count` is 0.
template <typename Each>
__device__ __forceinline__ uint32_t collect(Scratch &s, uint32_t bound, uint32_t k, uint32_t most, const Each &each) {
    Key least = max((Key)bound << 32, (Key)1);
    const auto take = [&] {
        each([&](Key key) {
            if (key < least) return;
            const uint32_t place = atomicAdd(&s.count, 1);
            if (place < most) s.keys[place] = key;
        });
        __syncthreads();
        const uint32_t count = s.count;
        __syncthreads();
        return count;
    };
    uint32_t count = take();
    // Too many in few threads: the bound is raised until it fits. `low` lets too many pass, `high` too few.
    Key low = least, high = ~(Key)0;
    for (bool raised = false; count > most || (raised && count < k); raised = true) {
        (count > most ? low : high) = least;
        if (threadIdx.x == 0) s.count = 0;
        __syncthreads();
        least = low + (high - low) / 2;
        count = take();
    }
    return count;
}

// One of few candidates, a thread each; `alive` while no filter has left it out.
struct Candidate {
    float logit;
    uint32_t token;
    bool alive;
};

__device__ __forceinline__ float highest_alive(Scratch &s, const Candidate &c, uint32_t count) {
    if (threadIdx.x < count) s.logits[threadIdx.x] = c.alive ? c.logit : -INFINITY;
    __syncthreads();
    float top = -INFINITY;
    for (uint32_t i = 0; i < count; i++) top = fmaxf(top, s.logits[i]);
    __syncthreads();
    return top;
}

// Keeps the candidates of lowest rank until their masses reach `share`; ties go to the lowest token.
__device__ __forceinline__ void keep_mass(Scratch &s, Candidate &c, uint32_t count, Key rank, Key mass, float share) {
    const bool own = threadIdx.x < count;
    if (own)
        s.ranks[threadIdx.x] = rank, s.masses[threadIdx.x] = c.alive ? mass : 0,
        s.logits[threadIdx.x] = __uint_as_float(c.token);
    __syncthreads();
    Key before = 0, total = 0;
    for (uint32_t i = 0; own && i < count; i++) {
        const Key other = s.ranks[i], m = s.masses[i];
        total += m;
        if (other < rank || (other == rank && __float_as_uint(s.logits[i]) < c.token)) before += m;
    }
    c.alive = c.alive && before < target_mass(total, share);
    __syncthreads();
}

__device__ __forceinline__ void typical_few(Scratch &s, Candidate &c, uint32_t count, float top) {
    const double x = c.alive ? below(c.logit, top) : 0.0, p = exponential(x);
    const Key mass = units(p);
    if (threadIdx.x < count)
        s.ranks[threadIdx.x] = c.alive ? units(__dmul_rn(p, -x)) : 0, s.masses[threadIdx.x] = c.alive ? mass : 0;
    __syncthreads();
    Key masses = 0, moments = 0;
    for (uint32_t i = 0; i < count; i++) masses += s.masses[i], moments += s.ranks[i];
    __syncthreads();
    const double mean = -__ddiv_rn(__ull2double_rn(moments), __ull2double_rn(masses));
    keep_mass(s, c, count, rank_bits(fabs(__dsub_rn(mean, x))), mass, s.draw.typical_p);
}

// Keeps the candidates that come first until their masses reach `share`; they stand in the order of their ranks.
__device__ __forceinline__ void keep_first(Scratch &s, Candidate &c, uint32_t count, Key mass, float share) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = (count + WARP - 1) / WARP;
    if (!c.alive) mass = 0;
    Key up_to = mass;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const Key before = __shfl_up_sync(ALL_LANES, up_to, step);
        if (lane >= step) up_to += before;
    }
    if (lane == WARP - 1) s.warps[warp] = up_to;
    __syncthreads();
    Key before = up_to - mass, total = 0;
    for (uint32_t other = 0; other < warps; other++) {
        const Key sum = s.warps[other];
        if (other < warp) before += sum;
        total += sum;
    }
    c.alive = c.alive && before < target_mass(total, share);
}

// Puts the `k` best of `count` keys in order, by the lower half of the block, while the upper one scores all of them.
// Returns the mass of the thread's candidate beside the best one.
__device__ __forceinline__ Key rank(Scratch &s, uint32_t count, uint32_t k) {
    constexpr uint32_t SHARERS = 2;
    if (threadIdx.x < FEW) {
        const uint32_t first = threadIdx.x % SHARERS;
        for (uint32_t i = threadIdx.x / SHARERS; i < count; i += FEW / SHARERS) {
            const Key key = s.keys[i];
            uint32_t place = 0;
#pragma unroll 8
            for (uint32_t j = first; j < count; j += SHARERS) place += s.keys[j] > key;
            place += __shfl_xor_sync(3u << threadIdx.x % WARP / SHARERS * SHARERS, place, 1);
            if (first == 0 && place < k) s.best[place] = key, s.places[place] = i;
        }
        sync_threads<1, FEW>();
        // Whole warps without a candidate stay out of the way of the others.
        if (s.draw.temperature != 0.0f && threadIdx.x / WARP * WARP < min(count, k)) {
            const float top = logit_of(s.best[0]), logit = logit_of(s.best[min(threadIdx.x, count - 1)]);
            return units(exponential(top == INFINITY ? 0.0 : below(logit, top)));
        }
    } else if (s.draw.temperature != 0.0f) {
        for (uint32_t i = threadIdx.x - FEW; i < count; i += FEW) {
            const Key key = s.keys[i];
            const float logit = logit_of(key);
            // Where a logit is infinite, only those that are can be drawn, alike.
            s.scores[i] = score_key(s.draw, logit == INFINITY ? 0.0f : logit, ~(uint32_t)key);
        }
    }
    return 0;
}

// The token of a row, from its `count` best candidates in `s.best`, best first, of which there is one, their scores,
// and the mass of the thread's own.
__device__ __forceinline__ uint32_t draw_few(Scratch &s, uint32_t count, Key mass) {
    if (s.draw.temperature == 0.0f) return ~(uint32_t)s.best[0];
    Candidate c = {0.0f, 0, threadIdx.x < count};
    if (c.alive) c.logit = logit_of(s.best[threadIdx.x]), c.token = ~(uint32_t)s.best[threadIdx.x];
    Key score = c.alive ? s.scores[s.places[threadIdx.x]] : 0;
    float top = logit_of(s.best[0]);
    if (top == INFINITY) {
        c.alive = c.alive && c.logit == INFINITY;
        c.logit = top = 0.0f;
    }
    if (s.draw.typical_p < 1.0f) {
        typical_few(s, c, count, top);
        top = highest_alive(s, c, count);
        mass = units(exponential(c.alive ? below(c.logit, top) : 0.0));
    }
    const double x = c.alive ? below(c.logit, top) : 0.0;
    if (s.draw.top_p < 1.0f) keep_first(s, c, count, mass, s.draw.top_p);
    if (!(c.alive && x >= s.draw.least)) score = 0;
    const Key highest = warp_largest(score);
    const uint32_t token = __reduce_min_sync(ALL_LANES, score == highest ? c.token : NONE);
    if (threadIdx.x % WARP == 0) s.ranks[threadIdx.x / WARP] = highest, s.masses[threadIdx.x / WARP] = token;
    __syncthreads();
    Key best = 0;
    uint32_t winner = NONE;
    for (uint32_t warp = 0; warp < (count + WARP - 1) / WARP; warp++) {
        const Key other = s.ranks[warp];
        const uint32_t id = (uint32_t)s.masses[warp];
        if (other > best || (other == best && id < winner)) best = other, winner = id;
    }
    return winner;
}

// The token of a row, from `count` keys among which its `k` best are.
__device__ __forceinline__ uint32_t finish(Scratch &s, uint32_t count, uint32_t k) {
    if (count == 0) return NONE;
    const Key mass = rank(s, count, k);
    __syncthreads();
    return draw_few(s, min(count, k), mass);
}

// What the blocks of a row left; a block's threads take them in turn.
struct Left {
    const Key *keys;
    uint32_t count;

    template <typename Use>
    __device__ __forceinline__ void operator()(const Use &use) const {
        constexpr uint32_t LOADS = 8;
        for (uint32_t first = threadIdx.x; first < count; first += LOADS * THREADS) {
            Key loaded[LOADS];
#pragma unroll
            for (uint32_t j = 0; j < LOADS; j++)
                loaded[j] = first + j * THREADS < count ? __ldcg(keys + first + j * THREADS) : 0;
#pragma unroll
            for (uint32_t j = 0; j < LOADS; j++) use(loaded[j]);
        }
    }
};

// Leaves what is asked for of the block's part; the last block of the row returns true, with its token. A block that
// rehearses returns true with some token of its own part.
__device__ __forceinline__ bool few(const SampleArgs &args, Scratch &s, uint32_t row, uint32_t part,
    const float (&v)[ITEMS], uint32_t k, bool rehearses, uint32_t &token) {
    const uint32_t slots = k <= FIT_LEAST ? LEAST_SLOTS : SLOTS;
    uint32_t own = 0;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) own = max(own, ordered(v[j]));
    const auto each = [&](const auto &use) {
#pragma unroll
        for (int j = 0; j < ITEMS; j++) use(key_of(v[j], part * PART + j * THREADS + threadIdx.x));
    };
    const uint32_t count = collect(s, bound_of(s, own, k), k, slots, each);
    Key *kept = args.kept + (size_t)row * args.parts * SLOTS;
    if (threadIdx.x < slots) kept[part * slots + threadIdx.x] = threadIdx.x < count ? s.keys[threadIdx.x] : 0;
    if (!is_last(args, s, row, rehearses) && !rehearses) return false;
    const Left left = rehearses ? Left{kept + part * slots, slots} : Left{kept, args.parts * slots};
    own = 0;
    left([&](Key key) { own = max(own, (uint32_t)(key >> 32)); });
    token = finish(s, collect(s, bound_of(s, own, k), k, LIST, left), k);
    return true;
}
