// Drawing from a whole vocabulary: the blocks of a row look for each filter's last candidate together, byte by byte of
// its rank.
#pragma once
#include "sampling/sample.cuh"

// The blocks of a row that work on all of its logits together. Their logits are in `s.part`; bit j of `alive` says that
// no filter has left out element j * THREADS + threadIdx.x.
struct Team {
    Group &group;
    Scratch &s;
    uint32_t part, parts, rounds;
    uint32_t alive;

    __device__ __forceinline__ float logit(uint32_t j) const { return s.part[j * THREADS + threadIdx.x]; }
    __device__ __forceinline__ uint32_t token(uint32_t j) const { return part * PART + j * THREADS + threadIdx.x; }

    // Waits for all blocks, which began before later rows' did, so that they are all running.
    __device__ __forceinline__ void meet() {
        __threadfence();
        __syncthreads();
        rounds++;
        if (threadIdx.x == 0) {
            atomicAdd(&group.arrived, 1);
            while (*(volatile uint32_t *)&group.arrived < parts * rounds) {}
        }
        __syncthreads();
        __threadfence();
    }

    // Gives every block the sums of all blocks' bins, or the largest where `largest` is set. The bins of three rounds
    // take turns: those of the round before, which nobody reads any more, are cleared for the next but one.
    __device__ __forceinline__ void gather(bool largest) {
        Key *bins = group.bins[rounds % 3], *later = group.bins[(rounds + 2) % 3];
        const Key own = s.bins[threadIdx.x];
        if (own != 0 && largest) atomicMax(bins + threadIdx.x, own);
        if (own != 0 && !largest) atomicAdd(bins + threadIdx.x, own);
        meet();
        s.bins[threadIdx.x] = __ldcg(bins + threadIdx.x);
        if (part == 0) later[threadIdx.x] = 0;
        __syncthreads();
    }

    __device__ __forceinline__ void clear_bins() {
        __syncthreads();
        s.bins[threadIdx.x] = 0;
        __syncthreads();
    }

    __device__ __forceinline__ void add(uint32_t bin, Key mass) {
        if (mass > 0) atomicAdd(s.bins + bin, mass);
    }

    // The highest logit of those alive; minus infinity where there is none.
    __device__ __forceinline__ float top() {
        uint32_t own = 0;
        for (uint32_t j = 0; j < ITEMS; j++) own = max(own, alive >> j & 1 ? ordered(logit(j)) : 0);
        clear_bins();
        const Key best = block_largest(s, own);
        if (threadIdx.x == 0) s.bins[0] = best;
        __syncthreads();
        gather(true);
        return s.bins[0] == 0 ? -INFINITY : logit_of(s.bins[0] << 32);
    }

    // Adds the masses of `among` in the bins of their digits.
    template <typename Digit, typename Mass>
    __device__ __forceinline__ void count_digits(uint32_t among, const Digit &digit, const Mass &mass) {
        uint32_t bin = 0;
        Key sum = 0;
#pragma unroll 1
        for (uint32_t j = 0; j < ITEMS; j++) {
            if (!(among >> j & 1)) continue;
            const uint32_t next = digit(j);
            if (next != bin) add(bin, sum), sum = 0;
            bin = next, sum += mass(j);
        }
        __syncwarp();
        // Upper digits are often the same in a whole warp.
        if (__all_sync(ALL_LANES, bin == __shfl_sync(ALL_LANES, bin, 0))) {
#pragma unroll
            for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
            if (threadIdx.x % WARP != 0) sum = 0;
        }
        add(bin, sum);
        __syncthreads();
    }

    // Finds the bin in which the mass is reached, BINS if in none; the goal of the first round comes from the total.
    template <typename Goal>
    __device__ __forceinline__ uint32_t cross(bool first, const Goal &goal) {
        Key before = 0, total = 0;
        for (uint32_t bin = 0; bin < BINS; bin++) {
            const Key mass = s.bins[bin];
            before += bin < threadIdx.x ? mass : 0, total += mass;
        }
        const Key missing = first ? goal(total) : s.missing, own = s.bins[threadIdx.x];
        if (threadIdx.x == 0) s.crossing = BINS;
        __syncthreads();
        if (before < missing && missing <= before + own) s.crossing = threadIdx.x, s.missing = missing - before;
        __syncthreads();
        return s.crossing;
    }

    // Keeps those of lowest rank until their masses reach the goal; ties go to the lowest token. The last of them is
    // found digit by digit, those of its rank first, then those of its token.
    template <typename Rank, typename Mass, typename Goal>
    __device__ __forceinline__ void keep_until(const Rank &rank, const Mass &mass, const Goal &goal) {
        constexpr int DIGITS = 8, TOKEN_DIGITS = 3;
        uint32_t among = alive;
        for (int place = DIGITS + TOKEN_DIGITS - 1; place >= 0; place--) {
            const auto digit = [&](uint32_t j) {
                return place >= TOKEN_DIGITS ? (uint32_t)(rank(j) >> (8 * (place - TOKEN_DIGITS))) & 255
                                             : token(j) >> (8 * place) & 255;
            };
            clear_bins();
            count_digits(among, digit, mass);
            gather(false);
            const uint32_t crossing = cross(place == DIGITS + TOKEN_DIGITS - 1, goal);
            if (crossing == BINS) return;
#pragma unroll 1
            for (uint32_t j = 0; j < ITEMS; j++) {
                if (!(among >> j & 1)) continue;
                const uint32_t own = digit(j);
                if (own != crossing) among &= ~(1u << j);
                if (own > crossing) alive &= ~(1u << j);
            }
        }
    }

    __device__ __forceinline__ void typical(float top) {
        Key masses = 0, moments = 0;
#pragma unroll 1
        for (uint32_t j = 0; j < ITEMS; j++) {
            if (!(alive >> j & 1)) continue;
            const double x = below(logit(j), top), p = exponential(x);
            masses += units(p), moments += units(__dmul_rn(p, -x));
        }
        clear_bins();
        add(0, masses), add(1, moments);
        __syncthreads();
        gather(false);
        const double mean = -__ddiv_rn(__ull2double_rn(s.bins[1]), __ull2double_rn(s.bins[0]));
        keep_until([&](uint32_t j) { return rank_bits(fabs(__dsub_rn(mean, below(logit(j), top)))); },
            [&](uint32_t j) { return units(exponential(below(logit(j), top))); },
            [&](Key total) { return target_mass(total, s.draw.typical_p); });
    }

    __device__ __forceinline__ void filter() {
        if (s.draw.top_k > 0) {
            // Larger keys come first; they hold the token too.
            keep_until([&](uint32_t j) { return ~key_of(logit(j), token(j)); }, [&](uint32_t) { return (Key)1; },
                [&](Key) { return (Key)s.draw.top_k; });
        }
        float highest = top();
        if (highest == -INFINITY) return;
        if (highest == INFINITY) {
            for (uint32_t j = 0; j < ITEMS; j++) {
                if (logit(j) != INFINITY) alive &= ~(1u << j);
                s.part[j * THREADS + threadIdx.x] = 0.0f;
            }
            highest = 0.0f;
        }
        if (s.draw.typical_p < 1.0f) {
            typical(highest);
            highest = top();
        }
        if (s.draw.top_p < 1.0f) {
            keep_until([&](uint32_t j) { return rank_bits(-below(logit(j), highest)); },
                [&](uint32_t j) { return units(exponential(below(logit(j), highest))); },
                [&](Key total) { return target_mass(total, s.draw.top_p); });
        }
        for (uint32_t j = 0; j < ITEMS; j++) {
            if (alive >> j & 1 && !(below(logit(j), highest) >= s.draw.least)) alive &= ~(1u << j);
        }
    }
};

// A row's whole vocabulary; the last block of the row returns true, with its token.
__device__ __forceinline__ bool whole(
    const SampleArgs &args, Scratch &s, uint32_t row, uint32_t part, const float (&v)[ITEMS], uint32_t &token) {
    Team team{args.groups[row], s, part, args.parts, 0, 0};
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        // Adding zero turns minus zero into zero.
        s.part[j * THREADS + threadIdx.x] = v[j] + 0.0f;
        team.alive |= (uint32_t)(v[j] > -INFINITY) << j;
    }
    team.filter();
    Key score = 0;
    uint32_t own = NONE;
#pragma unroll 1
    for (uint32_t j = 0; j < ITEMS; j++) {
        const Key other = team.alive >> j & 1 ? score_key(s.draw, team.logit(j), team.token(j)) : 0;
        // Later ones have higher tokens.
        if (other > score) score = other, own = team.token(j);
    }
    Key *kept = args.kept + (size_t)row * args.parts * SLOTS;
    const Key best = block_largest(s, score), first = block_largest(s, score == best && score != 0 ? ~own : 0);
    if (threadIdx.x == 0) kept[2 * part] = best, kept[2 * part + 1] = first;
    if (!is_last(args, s, row, false)) return false;
    score = 0, own = 0;
    for (uint32_t i = threadIdx.x; i < args.parts; i += THREADS) {
        const Key other = __ldcg(kept + 2 * i);
        const uint32_t inverse = (uint32_t)__ldcg(kept + 2 * i + 1);
        if (other > score || (other == score && inverse > own)) score = other, own = inverse;
    }
    const Key highest = block_largest(s, score), winner = block_largest(s, score == highest && score != 0 ? own : 0);
    token = highest == 0 ? NONE : ~(uint32_t)winner;
    return true;
}
