// Attention over paged keys and values of any even sizes of heads, and of every type, in f32: for up to GROUP query
// heads of a key-value head in a block. Keys may be longer than values, as in latent attention.
//
// Each split of the positions gives a maximum, a sum of exponentials and a weighted sum of values, merged in order of
// position. Either a block walks over all splits of its row, or each split has a block and `attention_combine` adds
// them: the same sums in the same order.
#include "attention/kv_q8.cuh"
#include "attention/softmax.cuh"

constexpr int GROUP = 4;
constexpr int THREADS = 256, COMBINE_THREADS = 256;
constexpr int SPLIT_PAGES = LONG_SPLIT / PAGE_TOKENS;
// Most elements of a head of keys.
constexpr uint32_t MOST_DIM = 576;

// The element type of a cache of 8 bits.
using Q8 = int8_t;
template <typename T>
constexpr bool IS_Q8 = sizeof(T) == sizeof(Q8);

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
            for (int g = 0; g < GROUP; g++)
                score[g] = __fmaf_rn(q[g * dim + d + 1], k.y, __fmaf_rn(q[g * dim + d], k.x, score[g]));
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
            const float4 a = *reinterpret_cast<const float4 *>(key + d),
                         b = *reinterpret_cast<const float4 *>(key + d + 4);
            k[0] = a.x, k[1] = a.y, k[2] = a.z, k[3] = a.w, k[4] = b.x, k[5] = b.y, k[6] = b.z, k[7] = b.w;
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int i = 0; i < 8; i++) score[g] = __fmaf_rn(q[g * dim + d + i], k[i], score[g]);
        }
    }
}

// The same of a cache of 8 bits, from element `first` on: a block's sum is multiplied by its scale.
template <uint32_t COUNT>
__device__ __forceinline__ void add_multiples(
    const int8_t (&k)[COUNT], const float *q, uint32_t dim, float (&sum)[GROUP]) {
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) sum[g] = __fmaf_rn(q[g * dim + i], (float)k[i], sum[g]);
    }
}

__device__ __forceinline__ void score_key(
    const Q8Run &run, uint32_t slot, const float *q, uint32_t dim, float (&score)[GROUP]) {
    const int8_t *key = run.multiples + slot * dim;
    for (uint32_t start = 0; start < dim; start += Q8_BLOCK) {
        float sum[GROUP] = {};
        const uint32_t end = min(start + Q8_BLOCK, dim);
        if (dim % 8 == 0) {
            for (uint32_t d = start; d < end; d += 8) {
                const uint2 v = *reinterpret_cast<const uint2 *>(key + d);
                add_multiples<8>(reinterpret_cast<const int8_t (&)[8]>(v), q + d, dim, sum);
            }
        } else {
            for (uint32_t d = start; d < end; d += 2) {
                const char2 v = *reinterpret_cast<const char2 *>(key + d);
                add_multiples<2>(reinterpret_cast<const int8_t (&)[2]>(v), q + d, dim, sum);
            }
        }
        const float scale = run.scale(start / Q8_BLOCK, slot);
#pragma unroll
        for (int g = 0; g < GROUP; g++) score[g] = __fmaf_rn(sum[g], scale, score[g]);
    }
}

// Neighbouring elements of a value.
__device__ __forceinline__ float2 pair_at(const Q8Run &run, uint32_t slot, uint32_t pair, uint32_t dim) {
    const char2 v = *reinterpret_cast<const char2 *>(run.multiples + slot * dim + 2 * pair);
    const float scale = run.scale(2 * pair / Q8_BLOCK, slot);
    return make_float2(__fmul_rn((float)v.x, scale), __fmul_rn((float)v.y, scale));
}

// Turns a head's scores into powers; one warp a head.
__device__ __forceinline__ void exponentiate(float *p, uint32_t keys, State &state) {
    const uint32_t lane = threadIdx.x % WARP;
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t i = lane; i < keys; i += WARP) max = fmaxf(max, p[i]);
    max = ceilf(warp_max(max));
    for (uint32_t i = lane; i < keys; i += WARP) {
        p[i] = exp2f(p[i] - max);
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
    __shared__ float p[GROUP][LONG_SPLIT];
    __shared__ uint32_t pages[SPLIT_PAGES];
    const HeadsArgs &in = args.in;
    const uint32_t dim = in.head_dim, value_dim = in.value_dim, pairs = value_dim / 2, parts = THREADS / pairs,
                   thread = threadIdx.x;
    float *q = shared, *out = q + GROUP * dim, *part_sums = out + GROUP * value_dim;
    await_then_launch();
    const uint32_t row = blockIdx.z, group = in.heads / in.kv_heads, chunks = (group + GROUP - 1) / GROUP;
    const uint32_t kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * GROUP,
                   heads = min(GROUP, group - first);
    const Row item = in.rows[row];
    const uint32_t ahead = args.width - args.window,
                   behind = ahead == 0 ? 0 : rows_behind(in.rows, item.slot, row + 1, min(row + 1 + ahead, shape.rows));
    const uint32_t keys = item.position + 1 + behind, splits = splits_of(keys), stride = part_stride(shape);
    if (blockIdx.x >= splits) return;
    const size_t head = (size_t)row * in.heads + kv_head * group + first;
    for (uint32_t i = thread; i < GROUP * dim; i += THREADS) {
        q[i] = i < heads * dim ? in.q[head * dim + i] : 0.0f;
    }
    for (uint32_t i = thread; i < GROUP * value_dim; i += THREADS) out[i] = 0.0f;
    if (thread < GROUP) state[thread] = State{-INFINITY, 0.0f};
    if constexpr (IS_Q8<T>) {
        __syncthreads();
        if (thread / WARP < GROUP) rotate_head<MOST_DIM>(q + thread / WARP * dim, dim);
    }
    const T *cache = reinterpret_cast<const T *>(in.cache);
    const auto run_of = [&](uint32_t each) {
        return (size_t)kv_head * PAGE_TOKENS * (IS_Q8<T> ? q8_bytes(each) : each);
    };
    const size_t keys_at = in.keys + run_of(dim), values_at = in.values + run_of(value_dim);
    const uint32_t seen = first_seen(args, item.position), first_split = split_of(seen);
    for (uint32_t split = blockIdx.x; split < splits; split += gridDim.x) {
        if (split < first_split) continue;
        const uint32_t start = split_start(split), count = min(keys, split_start(split + 1)) - start,
                       hidden = seen - min(seen, start);
        if (thread < (count + PAGE_TOKENS - 1) / PAGE_TOKENS) {
            pages[thread] = in.tables[(size_t)item.slot * in.table_stride + start / PAGE_TOKENS + thread];
        }
        __syncthreads();
        for (uint32_t k = thread; k < count; k += THREADS) {
            if (k < hidden) {
#pragma unroll
                for (int g = 0; g < GROUP; g++) p[g][k] = -INFINITY;
                continue;
            }
            float score[GROUP] = {};
            const size_t page = pages[k / PAGE_TOKENS] * in.page_elements;
            if constexpr (IS_Q8<T>) {
                score_key(Q8Run(in.cache, page + keys_at, dim), k % PAGE_TOKENS, q, dim, score);
            } else {
                score_key(cache + page + keys_at + (k % PAGE_TOKENS) * dim, q, dim, score);
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++)
                p[g][k] = args.cap == 0.0f ? score[g] * args.scale : args.cap * tanhf(score[g] * args.scale);
        }
        __syncthreads();
        if (thread / WARP < GROUP) exponentiate(p[thread / WARP], count, split_state[thread / WARP]);
        __syncthreads();
        if (thread < parts * pairs) {
            const uint32_t pair = thread % pairs, part = thread / pairs;
            float2 sum[GROUP] = {};
            for (uint32_t k = part; k < count; k += parts) {
                if (k < hidden) continue;
                const size_t page = pages[k / PAGE_TOKENS] * in.page_elements;
                float2 v;
                if constexpr (IS_Q8<T>) {
                    v = pair_at(Q8Run(in.cache, page + values_at, value_dim), k % PAGE_TOKENS, pair, value_dim);
                } else {
                    v = pair_at(cache + page + values_at + (k % PAGE_TOKENS) * value_dim + 2 * pair);
                }
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
        if (thread < GROUP)
            factors[thread] = merge_state(state[thread], split_state[thread].max, split_state[thread].sum);
        __syncthreads();
        for (uint32_t i = thread; i < GROUP * value_dim; i += THREADS) {
            float mixed = part_sums[i];
            for (uint32_t part = 1; part < parts; part++)
                mixed = __fadd_rn(mixed, part_sums[part * GROUP * value_dim + i]);
            out[i] = merge_value(out[i], mixed, factors[i / value_dim]);
        }
        __syncthreads();
    }
    for (uint32_t i = thread; i < heads * value_dim; i += THREADS) {
        args.mixed[((head + i / value_dim) * stride + blockIdx.x) * value_dim + i % value_dim] = out[i];
    }
    if (thread < heads) {
        args.states[(head + thread) * stride + blockIdx.x] = make_float2(state[thread].max, state[thread].sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_f16(const __grid_constant__ AttentionArgs args, Shape shape) {
    attend<__half>(args, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_f32(const __grid_constant__ AttentionArgs args, Shape shape) {
    attend<float>(args, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_q8(const __grid_constant__ AttentionArgs args, Shape shape) {
    attend<Q8>(args, shape);
}

// Rotates the heads that a block has an element a thread of; parts that are rotated together do not cross blocks.
__device__ __forceinline__ float rotate_across(float v, uint32_t size) {
    __shared__ float all[COMBINE_THREADS];
    const uint32_t thread = threadIdx.x;
    for (uint32_t half = 1; half < min(size, (uint32_t)WARP); half *= 2)
        v = sum_or_difference(v, __shfl_xor_sync(ALL_LANES, v, half), (thread & half) != 0);
    for (uint32_t half = WARP; half < size; half *= 2) {
        all[thread] = v;
        __syncthreads();
        v = sum_or_difference(v, all[thread ^ half], (thread & half) != 0);
        __syncthreads();
    }
    return __fmul_rn(v, rotation_factor(size));
}

// Merges the splits of every head and divides by the sum; a thread an element.
template <bool ROTATES>
__device__ __forceinline__ void combine(const AttentionArgs &args, const Shape &shape) {
    await_then_launch();
    const HeadsArgs &in = args.in;
    const uint32_t dim = in.value_dim, width = in.heads * dim, row = blockIdx.y,
                   col = blockIdx.x * blockDim.x + threadIdx.x;
    float v = 0.0f;
    if (col < width) {
        const uint32_t stride = part_stride(shape), position = in.rows[row].position;
        const uint32_t splits = stride == 1 ? 1 : splits_of(position + 1),
                       first_split = stride == 1 ? 0 : split_of(first_seen(args, position));
        const size_t first = ((size_t)row * in.heads + col / dim) * stride;
        State state{-INFINITY, 0.0f};
        for (uint32_t split = first_split; split < splits; split++) {
            const float2 other = args.states[first + split];
            const float2 factor = merge_state(state, other.x, other.y);
            v = merge_value(v, args.mixed[(first + split) * dim + col % dim], factor);
        }
        v = __fdiv_rn(v, __fadd_rn(state.sum, sink_weight(args, col / dim, state.max)));
    }
    if constexpr (ROTATES) v = rotate_across(v, rotated_elements(dim));
    emit(args.out, row, col, width, v);
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_combine(const __grid_constant__ AttentionArgs args, Shape shape) {
    combine<false>(args, shape);
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_combine_splits(const __grid_constant__ AttentionArgs args, Shape shape) {
    combine<false>(args, shape);
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_combine_q8(const __grid_constant__ AttentionArgs args, Shape shape) {
    combine<true>(args, shape);
}
