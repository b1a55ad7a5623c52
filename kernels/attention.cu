// Causal attention over paged keys and values, for up to GROUP query heads of a key-value head in a block.
//
// The keys are taken in splits at absolute multiples of 256 positions; each gives a maximum, a sum of exponentials and a weighted sum of
// values, merged in order of position (the online softmax of Milakov and Gimelshein, 2018). Either a block walks over all splits of its row, or
// each split has a block and `attention_merge` adds them: the same sums in the same order.
#include "common/activation.cuh"
#include "common/softmax.cuh"

struct AttentionArgs {
    const float *q;
    float *mixed;    // [row][head][split][head_dim], relative to the split's maximum
    float2 *states;  // [row][head][split]: maximum, sum
    const Row *rows;
    const uint32_t *tables;
    const void *cache;
    uint64_t page_elements, keys, values;
    uint32_t table_stride, heads, kv_heads, head_dim;
    Activation out;
};

constexpr int GROUP = 4;
constexpr int THREADS = 256;
constexpr int SPLIT_PAGES = SPLIT_TOKENS / PAGE_TOKENS;

template <typename T>
__device__ __forceinline__ float2 pair_at(const T *p) {
    if constexpr (sizeof(T) == 2) return __half22float2(*reinterpret_cast<const __half2 *>(p));
    else return *reinterpret_cast<const float2 *>(p);
}

// Scores of one key: 8 elements of a key are read at a time where heads allow it.
template <typename T>
__device__ __forceinline__ void score_key(const T *key, const float *q, uint32_t dim, float (&score)[GROUP]) {
    if (dim % 8 != 0) {
        for (uint32_t d = 0; d < dim; d += 2) {
            const float2 k = pair_at(key + d);
#pragma unroll
            for (int g = 0; g < GROUP; g++) score[g] = __fmaf_rn(q[g * dim + d + 1], k.y, __fmaf_rn(q[g * dim + d], k.x, score[g]));
        }
        return;
    }
    for (uint32_t d = 0; d < dim; d += 8) {
        float k[8];
        if constexpr (sizeof(T) == 2) {
            const uint4 v = *reinterpret_cast<const uint4 *>(key + d);
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 pair = __half22float2(reinterpret_cast<const __half2 &>(words[i]));
                k[2 * i] = pair.x, k[2 * i + 1] = pair.y;
            }
        } else {
            const float4 a = *reinterpret_cast<const float4 *>(key + d), b = *reinterpret_cast<const float4 *>(key + d + 4);
            k[0] = a.x, k[1] = a.y, k[2] = a.z, k[3] = a.w, k[4] = b.x, k[5] = b.y, k[6] = b.z, k[7] = b.w;
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < 8; i++) score[g] = __fmaf_rn(q[g * dim + d + i], k[i], score[g]);
        }
    }
}

// Turns a head's scores into exponentials; one warp a head.
__device__ __forceinline__ void exponentiate(float *p, uint32_t keys, State &state) {
    const uint32_t lane = threadIdx.x % WARP;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = lane; i < keys; i += WARP) max = fmaxf(max, p[i]);
    max = warp_max(max);
    for (uint32_t i = lane; i < keys; i += WARP) {
        p[i] = expf(p[i] - max);
        sum = __fadd_rn(sum, p[i]);
    }
    sum = warp_sum(sum);
    if (lane == 0) state = State{max, sum};
}

template <typename T>
__device__ __forceinline__ void attend(const AttentionArgs &args, const Shape &shape) {
    extern __shared__ float shared[];
    __shared__ State split_state[GROUP], state[GROUP];
    __shared__ float2 factors[GROUP];
    __shared__ float p[GROUP][SPLIT_TOKENS];
    __shared__ uint32_t pages[SPLIT_PAGES];
    const uint32_t dim = args.head_dim, pairs = dim / 2, parts = THREADS / pairs, thread = threadIdx.x;
    float *q = shared, *out = q + GROUP * dim, *part_sums = out + GROUP * dim;
    wait_for_producers();
    const uint32_t row = blockIdx.z, group = args.heads / args.kv_heads, chunks = (group + GROUP - 1) / GROUP;
    const uint32_t kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * GROUP, heads = min(GROUP, group - first);
    const Row item = args.rows[row];
    const uint32_t keys = item.position + 1, splits = (keys + SPLIT_TOKENS - 1) / SPLIT_TOKENS;
    if (blockIdx.x >= splits) return;
    const size_t head = (size_t)row * args.heads + kv_head * group + first;
    for (uint32_t i = thread; i < GROUP * dim; i += THREADS) {
        q[i] = i < heads * dim ? args.q[head * dim + i] : 0.0f;
        out[i] = 0.0f;
    }
    if (thread < GROUP) state[thread] = State{-INFINITY, 0.0f};
    const T *cache = reinterpret_cast<const T *>(args.cache);
    const size_t run = (size_t)kv_head * PAGE_TOKENS * dim;
    const float scale = __frcp_rn(__fsqrt_rn((float)dim));
    for (uint32_t split = blockIdx.x; split < splits; split += gridDim.x) {
        const uint32_t count = min(keys - split * SPLIT_TOKENS, (uint32_t)SPLIT_TOKENS);
        if (thread < (count + PAGE_TOKENS - 1) / PAGE_TOKENS) {
            pages[thread] = args.tables[(size_t)item.slot * args.table_stride + split * SPLIT_PAGES + thread];
        }
        __syncthreads();
        if (thread < count) {
            float score[GROUP] = {};
            const size_t page = pages[thread / PAGE_TOKENS] * args.page_elements;
            score_key(cache + page + args.keys + run + (thread % PAGE_TOKENS) * dim, q, dim, score);
#pragma unroll
            for (int g = 0; g < GROUP; g++) p[g][thread] = score[g] * scale;
        }
        __syncthreads();
        if (thread / WARP < GROUP) exponentiate(p[thread / WARP], count, split_state[thread / WARP]);
        __syncthreads();
        if (thread < parts * pairs) {
            const uint32_t pair = thread % pairs, part = thread / pairs;
            float2 sum[GROUP] = {};
            for (uint32_t k = part; k < count; k += parts) {
                const size_t page = pages[k / PAGE_TOKENS] * args.page_elements;
                const float2 v = pair_at(cache + page + args.values + run + (k % PAGE_TOKENS) * dim + 2 * pair);
#pragma unroll
                for (int g = 0; g < GROUP; g++) {
                    sum[g].x = __fmaf_rn(p[g][k], v.x, sum[g].x), sum[g].y = __fmaf_rn(p[g][k], v.y, sum[g].y);
                }
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                reinterpret_cast<float2 *>(part_sums)[(part * GROUP + g) * pairs + pair] = sum[g];
            }
        }
        if (thread < GROUP) factors[thread] = merge_state(state[thread], split_state[thread].max, split_state[thread].sum);
        __syncthreads();
        for (uint32_t i = thread; i < GROUP * dim; i += THREADS) {
            float mixed = part_sums[i];
            for (uint32_t part = 1; part < parts; part++) mixed = __fadd_rn(mixed, part_sums[part * GROUP * dim + i]);
            out[i] = merge_value(out[i], mixed, factors[i / dim]);
        }
        __syncthreads();
    }
    for (uint32_t i = thread; i < heads * dim; i += THREADS) {
        args.mixed[((head + i / dim) * shape.splits + blockIdx.x) * dim + i % dim] = out[i];
    }
    if (thread < heads) {
        args.states[(head + thread) * shape.splits + blockIdx.x] = make_float2(state[thread].max, state[thread].sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_f16(const __grid_constant__ AttentionArgs args, Shape shape) {
    attend<__half>(args, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_f32(const __grid_constant__ AttentionArgs args, Shape shape) {
    attend<float>(args, shape);
}

// Merges the splits of every head and divides by the sum; a thread an element.
extern "C" __global__ void __launch_bounds__(256) attention_merge(const __grid_constant__ AttentionArgs args, Shape shape) {
    wait_for_producers();
    const uint32_t width = args.heads * args.head_dim, row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    float v = 0.0f;
    if (col < width) {
        const uint32_t all = (args.rows[row].position + SPLIT_TOKENS) / SPLIT_TOKENS;
        const uint32_t splits = shape.splits == 1 ? 1 : all;
        const size_t first = ((size_t)row * args.heads + col / args.head_dim) * shape.splits;
        State state{-INFINITY, 0.0f};
        for (uint32_t split = 0; split < splits; split++) {
            const float2 other = args.states[first + split];
            const float2 factor = merge_state(state, other.x, other.y);
            v = merge_value(v, args.mixed[(first + split) * args.head_dim + col % args.head_dim], factor);
        }
        v = __fdiv_rn(v, state.sum);
    }
    emit(args.out, row, col, width, v);
}
