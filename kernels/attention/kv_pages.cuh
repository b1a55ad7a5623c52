// Stretches of keys or values of one head on their way from the paged f16 cache to shared memory, 16 bytes a copy. Rows
// there are 16 bytes apart from each other, which keeps banks apart.
#pragma once
#include "attention/softmax.cuh"
#include "ptx/cp_async.cuh"

constexpr uint32_t PAD = 8;

// The cache of a key-value head, as one sequence sees it.
struct Cached {
    const uint32_t *table;
    const __half *keys, *values;  // in page 0
    uint64_t page_elements;

    __device__ __forceinline__ Cached(const HeadsArgs &in, uint32_t slot, uint32_t kv_head) {
        const __half *run = reinterpret_cast<const __half *>(in.cache) + (size_t)kv_head * PAGE_TOKENS * in.head_dim;
        table = in.tables + (size_t)slot * in.table_stride;
        keys = run + in.keys, values = run + in.values, page_elements = in.page_elements;
    }

    __device__ __forceinline__ uint32_t page_of(uint32_t position) const {
        return __ldcg(table + position / PAGE_TOKENS);
    }
};
