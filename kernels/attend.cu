// Causal attention over paged f16 keys and values that pass through shared memory. A warp takes a page of every split of 256 positions.
//
// The sums are those of a split, merged in order of position (the online softmax of Milakov and Gimelshein, 2018). Either a block walks over all
// splits of its row, or each split has a block and the last one to end merges them: the same sums in the same order, for any number of heads a
// block. With one row in the batch, the norm and rotation of its heads and its place in the cache are done here too, and pages are on their way
// before the block waits for its producers: all keys but the row's own are older than the step, and what tells of the row is older than the
// embedding, which no later kernel overtakes.
#include "common/activation.cuh"
#include "common/async.cuh"
#include "common/heads.cuh"
#include "common/softmax.cuh"

struct AttendArgs {
    HeadsArgs in;
    float *mixed;    // [row][head][split][head_dim], relative to the split's maximum
    float2 *states;  // [row][head][split]: maximum, sum
    uint32_t *ended;  // [row][blocks of a row]: splits that have ended; left at 0
    Activation out;
};

constexpr int WARPS = SPLIT_TOKENS / PAGE_TOKENS;
constexpr int THREADS = WARPS * WARP;
constexpr int MAX_DIM = 192;

// Shared memory of a block of GROUP heads.
struct Buffers {
    __half *keys, *values;  // the warp's page
    __half *own_key, *own_value;
    float *q;     // per head, the first four of every eight elements, then the other four
    float *p;     // the warp's, [key][head]
    float *part;  // [warp][head][dim]
};

template <int GROUP>
__device__ __forceinline__ Buffers carve(uint8_t *shared, uint32_t dim, uint32_t warp) {
    Buffers b;
    __half *pages = reinterpret_cast<__half *>(shared);
    const uint32_t page = PAGE_TOKENS * dim;
    b.keys = pages + warp * page, b.values = pages + (WARPS + warp) * page;
    b.own_key = pages + 2 * WARPS * page, b.own_value = b.own_key + dim;
    b.q = reinterpret_cast<float *>(b.own_value + dim);
    b.part = b.q + GROUP * dim;
    b.p = b.part + WARPS * GROUP * dim + warp * PAGE_TOKENS * GROUP;
    return b;
}

__device__ __forceinline__ uint32_t q_place(uint32_t dim, uint32_t i) { return (i / 4 % 2 * (dim / 8) + i / 8) * 4 + i % 4; }

struct Source {
    const uint32_t *table;
    const __half *keys, *values;  // of the block's head, in page 0
    uint64_t page_elements;
    uint32_t bytes;

    __device__ __forceinline__ void start(const __half *run, uint32_t page, __half *to, uint64_t *gate) const {
        const __half *from = run + __ldcg(table + page) * page_elements;
        start_copy(reinterpret_cast<uint8_t *>(to), reinterpret_cast<const uint8_t *>(from), bytes, gate);
    }
};

// Scores of the lane's key. Lanes begin at different eighths, so that banks are read evenly.
template <int GROUP>
__device__ __forceinline__ void score(const Buffers &b, uint32_t dim, float (&s)[GROUP]) {
    const uint32_t lane = threadIdx.x % WARP, chunks = dim / 8;
    const __half *key = b.keys + lane * dim;
    uint32_t chunk = lane % chunks;
#pragma unroll 4
    for (uint32_t i = 0; i < chunks; i++) {
        const uint4 v = reinterpret_cast<const uint4 *>(key)[chunk];
        const float2 k0 = __half22float2(reinterpret_cast<const __half2 &>(v.x)), k1 = __half22float2(reinterpret_cast<const __half2 &>(v.y));
        const float2 k2 = __half22float2(reinterpret_cast<const __half2 &>(v.z)), k3 = __half22float2(reinterpret_cast<const __half2 &>(v.w));
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            const float4 *q = reinterpret_cast<const float4 *>(b.q + g * dim) + chunk;
            const float4 q0 = q[0], q1 = q[chunks];
            s[g] = __fmaf_rn(q0.y, k0.y, __fmaf_rn(q0.x, k0.x, s[g])), s[g] = __fmaf_rn(q0.w, k1.y, __fmaf_rn(q0.z, k1.x, s[g]));
            s[g] = __fmaf_rn(q1.y, k2.y, __fmaf_rn(q1.x, k2.x, s[g])), s[g] = __fmaf_rn(q1.w, k3.y, __fmaf_rn(q1.z, k3.x, s[g]));
        }
        if (++chunk == chunks) chunk = 0;
    }
}

// Weighted sum of the warp's values.
template <int GROUP>
__device__ __forceinline__ void mix(const Buffers &b, uint32_t dim, uint32_t count, float *part) {
    for (uint32_t pair = threadIdx.x % WARP; pair < dim / 2; pair += WARP) {
        float2 sum[GROUP] = {};
#pragma unroll 8
        for (uint32_t k = 0; k < count; k++) {
            const float2 v = __half22float2(reinterpret_cast<const __half2 *>(b.values + k * dim)[pair]);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float p = b.p[k * GROUP + g];
                sum[g].x = __fmaf_rn(p, v.x, sum[g].x), sum[g].y = __fmaf_rn(p, v.y, sum[g].y);
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) reinterpret_cast<float2 *>(part + g * dim)[pair] = sum[g];
    }
}

// Norm and rotation of the row's queries and key; key and value also go to the cache, by one of the blocks of a key-value head.
template <int GROUP>
__device__ __forceinline__ void turn(const HeadsArgs &in, const Buffers &b, const Row &item, uint32_t kv_head, uint32_t first_head, uint32_t heads,
                                     bool has_own, bool stores) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, dim = in.head_dim;
    if (warp < GROUP) {
        float *q = b.q + warp * dim;
        if (warp < heads) {
            turn_head(in, 0, in.q + (size_t)(first_head + warp) * dim, in.q_norm, [&](uint32_t i, float v) { q[q_place(dim, i)] = v; });
        } else {
            for (uint32_t i = lane; i < dim; i += WARP) q[i] = 0.0f;
        }
        return;
    }
    if (!has_own || warp > GROUP + 1) return;
    const bool is_key = warp == GROUP;
    const uint32_t page = in.tables[(size_t)item.slot * in.table_stride + item.position / PAGE_TOKENS];
    const size_t to = page * in.page_elements + (is_key ? in.keys : in.values) + ((size_t)kv_head * PAGE_TOKENS + item.position % PAGE_TOKENS) * dim;
    __half *cache = reinterpret_cast<__half *>(in.cache) + to, *own = is_key ? b.own_key : b.own_value;
    const auto put = [&](uint32_t i, float v) {
        own[i] = __float2half_rn(v);
        if (stores) cache[i] = own[i];
    };
    if (is_key) {
        turn_head(in, 0, in.k + (size_t)kv_head * dim, in.k_norm, put);
    } else {
        for (uint32_t i = lane; i < dim; i += WARP) put(i, in.v[(size_t)kv_head * dim + i]);
    }
}

// Elements of the result that a thread keeps.
template <int GROUP>
constexpr int KEPT = (GROUP * MAX_DIM + THREADS - 1) / THREADS;

template <bool ONE, int GROUP>
__device__ __forceinline__ void attend(const AttendArgs &args, const Shape &shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t gates[WARPS][2];
    __shared__ float maxima[GROUP][WARPS], totals[GROUP][WARPS];
    __shared__ bool is_last;
    const HeadsArgs &in = args.in;
    const uint32_t dim = in.head_dim, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.z;
    const uint32_t group = in.heads / in.kv_heads, chunks = (group + GROUP - 1) / GROUP, kv_head = blockIdx.y / chunks;
    const uint32_t in_group = blockIdx.y % chunks * GROUP, heads = min((uint32_t)GROUP, group - in_group), head = kv_head * group + in_group;
    const Buffers b = carve<GROUP>(shared, dim, warp);
    uint64_t *gate = gates[warp];
    if (lane == 0) make_gates(gate, 2);
    __syncwarp();
    if (!ONE) wait_for_producers();
    const uint4 words = __ldcg(reinterpret_cast<const uint4 *>(in.rows + row));
    const Row item{words.x, words.y, words.z, words.w};
    const uint32_t keys = item.position + 1, splits = (keys + SPLIT_TOKENS - 1) / SPLIT_TOKENS, pages = (keys + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const __half *run = reinterpret_cast<const __half *>(in.cache) + (size_t)kv_head * PAGE_TOKENS * dim;
    const Source source{in.tables + (size_t)item.slot * in.table_stride, run + in.keys, run + in.values, in.page_elements, 2 * PAGE_TOKENS * dim};
    uint32_t page = blockIdx.x * WARPS + warp;
    if (page < pages) {
        source.start(source.keys, page, b.keys, gate);
        source.start(source.values, page, b.values, gate + 1);
    }
    if (ONE) release_and_wait();
    if (blockIdx.x >= splits) return;
    if (ONE) {
        const bool has_own = gridDim.x == 1 || blockIdx.x == splits - 1;
        turn<GROUP>(in, b, item, kv_head, head, heads, has_own, in_group == 0);
    } else {
        for (uint32_t i = threadIdx.x; i < GROUP * dim; i += THREADS) {
            const float v = i < heads * dim ? in.q[((size_t)row * in.heads + head) * dim + i] : 0.0f;
            b.q[i / dim * dim + q_place(dim, i % dim)] = v;
        }
    }
    __syncthreads();
    const float scale = __frcp_rn(__fsqrt_rn((float)dim));
    State state[KEPT<GROUP>];
    float out[KEPT<GROUP>] = {};
#pragma unroll
    for (int e = 0; e < KEPT<GROUP>; e++) state[e] = State{-INFINITY, 0.0f};
    for (uint32_t split = blockIdx.x, use = 0; split < splits; split += gridDim.x, use++, page += gridDim.x * WARPS) {
        const uint32_t count = page < pages ? min(keys - page * PAGE_TOKENS, (uint32_t)PAGE_TOKENS) : 0, next = page + gridDim.x * WARPS;
        float s[GROUP] = {};
        if (count > 0) {
            wait_copy(gate, use);
            const bool is_own = ONE && page == pages - 1;
            const uint32_t at = (count - 1) * dim;
            if (is_own) {
                for (uint32_t i = lane; i < dim; i += WARP) b.keys[at + i] = b.own_key[i];
                __syncwarp();
            }
            score<GROUP>(b, dim, s);
            __syncwarp();
            if (next < pages) source.start(source.keys, next, b.keys, gate);
            wait_copy(gate + 1, use);
            if (is_own) {
                for (uint32_t i = lane; i < dim; i += WARP) b.values[at + i] = b.own_value[i];
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            s[g] = lane < count ? __fmul_rn(s[g], scale) : -INFINITY;
            const float max = warp_max(s[g]);
            if (lane == 0) maxima[g][warp] = max;
        }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float max = maxima[g][0];
#pragma unroll
            for (int w = 1; w < WARPS; w++) max = fmaxf(max, maxima[g][w]);
            const float p = lane < count ? expf(s[g] - max) : 0.0f;
            b.p[lane * GROUP + g] = p;
            const float total = warp_sum(p);
            if (lane == 0) totals[g][warp] = total;
        }
        __syncwarp();
        mix<GROUP>(b, dim, count, b.part + warp * GROUP * dim);
        __syncwarp();
        if (next < pages) source.start(source.values, next, b.values, gate + 1);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < KEPT<GROUP>; e++) {
            const uint32_t i = threadIdx.x + e * THREADS, g = i / dim;
            if (i >= heads * dim) break;
            float mixed = b.part[i], total = totals[g][0], max = maxima[g][0];
#pragma unroll
            for (int w = 1; w < WARPS; w++) {
                mixed = __fadd_rn(mixed, b.part[w * GROUP * dim + i]), total = __fadd_rn(total, totals[g][w]), max = fmaxf(max, maxima[g][w]);
            }
            out[e] = merge_value(out[e], mixed, merge_state(state[e], max, total));
        }
        // The next split's maxima replace these.
        if (split + gridDim.x < splits) __syncthreads();
    }
    const uint32_t width = in.heads * dim;
    const size_t place = ((size_t)row * in.heads + head) * shape.splits;
    if (gridDim.x > 1) {
#pragma unroll
        for (int e = 0; e < KEPT<GROUP>; e++) {
            const uint32_t i = threadIdx.x + e * THREADS, g = i / dim;
            if (i >= heads * dim) break;
            const size_t to = place + (size_t)g * shape.splits + blockIdx.x;
            args.mixed[to * dim + i % dim] = out[e];
            if (i % dim == 0) args.states[to] = make_float2(state[e].max, state[e].sum);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t *ended = args.ended + (size_t)row * gridDim.y + blockIdx.y;
            is_last = atomicAdd(ended, 1) == splits - 1;
            if (is_last) *ended = 0;
        }
        __syncthreads();
        if (!is_last) return;
        __threadfence();
    }
#pragma unroll
    for (int e = 0; e < KEPT<GROUP>; e++) {
        const uint32_t i = threadIdx.x + e * THREADS, g = i / dim;
        // Heads have whole warps of elements.
        if (i >= heads * dim) break;
        if (gridDim.x > 1) {
            const size_t from = place + (size_t)g * shape.splits;
            state[e] = State{-INFINITY, 0.0f}, out[e] = 0.0f;
#pragma unroll 4
            for (uint32_t split = 0; split < splits; split++) {
                const float2 other = __ldcg(args.states + from + split);
                const float mixed = __ldcg(args.mixed + (from + split) * dim + i % dim);
                out[e] = merge_value(out[e], mixed, merge_state(state[e], other.x, other.y));
            }
        }
        emit(args.out, row, head * dim + i, width, __fdiv_rn(out[e], state[e].sum));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attend_one_1(const __grid_constant__ AttendArgs args, Shape shape) {
    attend<true, 1>(args, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_one_4(const __grid_constant__ AttendArgs args, Shape shape) {
    attend<true, 4>(args, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attend_4(const __grid_constant__ AttendArgs args, Shape shape) {
    attend<false, 4>(args, shape);
}
