// Drawing tokens: masks, bias and penalties, filters, the draw, and the end of the step. The meaning is that of
// src/sample, to the bit.
//
// The blocks of a row hold its logits in registers, a part each.
#include "sampling/full_vocabulary.cuh"
#include "sampling/top_k_fast.cuh"

// Brings the block's part of its row's mask, which the host works out while the step runs: once it is there where
// `waits` is set, else if it is. Whether it was.
__device__ __forceinline__ bool fetch_mask(
    const SampleArgs &args, Scratch &s, uint32_t row, uint32_t part, uint32_t serial, bool waits) {
    if (threadIdx.x == 0) {
        const uint32_t *flag = args.host_masked + ((size_t)row * args.parts + part) * FLAG_WORDS;
        uint32_t written;
        while (true) {
            // What the host wrote before it is seen after it.
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(written) : "l"(flag) : "memory");
            if (written == serial || !waits) break;
            __nanosleep(200);
        }
        s.fetched = written == serial;
    }
    __syncthreads();
    const bool fetched = s.fetched != 0;
    if (fetched && threadIdx.x < MASK_WORDS)
        s.mask[threadIdx.x] = __ldcv(args.host_masks + ((size_t)row * args.parts + part) * MASK_WORDS + threadIdx.x);
    __syncthreads();
    return fetched;
}

// Leaves of the block's part what the mask allows. A warp's elements share a word.
__device__ __forceinline__ void apply_mask(const Scratch &s, float (&v)[ITEMS]) {
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const uint32_t word = s.mask[j * (THREADS / WARP) + threadIdx.x / WARP];
        if ((word >> threadIdx.x % WARP & 1) == 0) v[j] = -INFINITY;
    }
}

// Applies the block's adjustments to its part: all of a token's by one thread, in order.
__device__ __forceinline__ void adjust(
    const SampleArgs &args, Scratch &s, uint32_t row, uint32_t part, uint32_t start, uint32_t end, float (&v)[ITEMS]) {
    const volatile uint32_t *entries =
        reinterpret_cast<const volatile uint32_t *>(args.host_adjustments + (size_t)row * args.most_adjustments);
#pragma unroll
    for (int j = 0; j < ITEMS; j++) s.part[j * THREADS + threadIdx.x] = v[j];
    __syncthreads();
    for (uint32_t i = start + threadIdx.x; i < end; i += THREADS) {
        const uint32_t token = entries[3 * i];
        if (i > start && entries[3 * i - 3] == token) continue;
        float logit = s.part[token - part * PART];
        for (uint32_t e = i; e < end && entries[3 * e] == token; e++) {
            const uint32_t count = entries[3 * e + 1];
            if (count == 0) {
                logit = __fadd_rn(logit, __uint_as_float(entries[3 * e + 2]));
                continue;
            }
            logit = logit > 0.0f ? __fdiv_rn(logit, s.draw.repeat) : __fmul_rn(logit, s.draw.repeat);
            logit = __fsub_rn(logit, __fmul_rn((float)count, s.draw.frequency));
            logit = __fsub_rn(logit, s.draw.presence);
        }
        s.part[token - part * PART] = logit;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) v[j] = s.part[j * THREADS + threadIdx.x];
    __syncthreads();
}

// Tells the host a row's token, and leaves everything shared as it was found. Who rehearses does neither.
__device__ __forceinline__ void end_row(const SampleArgs &args, const Shape &shape, uint32_t row, uint32_t token,
    uint32_t serial, bool is_whole, bool rehearses) {
    Group &group = args.groups[row];
    if (threadIdx.x == 0 && !rehearses) tell_token(args.host_tokens + row, serial, token, args.has_vectors != 0);
    if (is_whole) {
        for (int round = 0; round < 3; round++) group.bins[round][threadIdx.x] = 0;
    }
    if (threadIdx.x != 0 || rehearses) return;
    group.arrived = group.ended = 0;
    if (atomicAdd(args.counters + 1, 1) == shape.outputs - 1) args.counters[0] = args.counters[1] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) sample(const __grid_constant__ SampleArgs args, Shape shape) {
    __shared__ Scratch s;
    // In order of their beginning: blocks that wait for each other are then running, whatever order the device starts
    // them in.
    if (threadIdx.x == 0) s.ticket = atomicAdd(args.counters, 1);
    __syncthreads();
    const uint32_t row = s.ticket / args.parts, part = s.ticket % args.parts;
    constexpr uint32_t WORDS = sizeof(Draw) / 4;
    if (threadIdx.x < WORDS)
        reinterpret_cast<uint32_t *>(&s.draw)[threadIdx.x] =
            __ldcg(reinterpret_cast<const uint32_t *>(args.draws + row) + threadIdx.x);
    const uint32_t serial = __ldcg(args.serial);
    __syncthreads();
    const bool is_adjusted = (s.draw.changes & ADJUSTED) != 0, is_masked = (s.draw.changes & MASKED) != 0;
    if (is_adjusted && threadIdx.x < 2) {
        s.range[threadIdx.x] =
            reinterpret_cast<const volatile uint32_t *>(args.host_starts)[row * (args.parts + 1) + part + threadIdx.x];
    }
    // Mostly the mask is there long before the logits.
    bool fetched = !is_masked || fetch_mask(args, s, row, part, serial, false);
    const uint32_t k = s.draw.temperature == 0.0f ? 1 : s.draw.top_k;
    const bool is_few = k > 0 && k <= FEW;
    // The first blocks go the short way twice, first with any logits, while the true ones are being made: all of the
    // step's weights have gone through the cache since its code was there last.
#pragma unroll 1
    for (bool rehearses = is_few && s.ticket < REHEARSERS;; rehearses = false) {
        if (!rehearses) await_then_launch();
        if (!rehearses && !fetched) fetched = fetch_mask(args, s, row, part, serial, true);
        const float *logits = args.logits + (size_t)row * args.vocab;
        uint32_t token = NONE;
        if (is_few && is_quick(args, s.draw)) {
            if (quick(args, s, row, part, logits, k, rehearses, token))
                end_row(args, shape, row, token, serial, false, rehearses);
            if (!rehearses) return;
            __syncthreads();
            continue;
        }
        float v[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const uint32_t i = part * PART + j * THREADS + threadIdx.x;
            v[j] = i < args.vocab ? __ldcg(logits + i) : -INFINITY;
        }
        if (!rehearses && is_masked) apply_mask(s, v);
        __syncthreads();
        if (!rehearses && is_adjusted && s.range[0] < s.range[1]) adjust(args, s, row, part, s.range[0], s.range[1], v);
        const bool last =
            is_few ? few(args, s, row, part, v, k, rehearses, token) : whole(args, s, row, part, v, token);
        if (last) end_row(args, shape, row, token, serial, !is_few, rehearses);
        if (!rehearses) return;
        __syncthreads();
    }
}
