// Words that carry a flag beside their data: who finds the flag has the data, and needs neither a fence nor the end of
// the launch that writes them. A flag is made of the step's number and of the launch's turn in the step, so none comes
// twice in four million steps. (The LL protocol of NCCL.) Who waits must be of the launch right behind the one that
// writes: its blocks begin only once all of that one's run, so they keep none from telling.
#pragma once
#include <stdint.h>

struct Flagged {
    unsigned long long *words;  // null for none
    const uint32_t *serial;     // number of the step
    uint32_t turn, pad;         // of the launches of a step that write such words: from 1 on
};
static_assert(sizeof(Flagged) == 24, "as in args.rs");

constexpr uint32_t MOST_TURNS = 1024;

// Read behind the wait of the launch that writes, or of the one behind it.
__device__ __forceinline__ uint32_t flag_of(const Flagged &flagged) {
    return __ldcg(flagged.serial) * MOST_TURNS + flagged.turn;
}

__device__ __forceinline__ void put_word(unsigned long long *to, uint32_t data, uint32_t flag) {
    const unsigned long long word = (unsigned long long)flag << 32 | data;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ __forceinline__ unsigned long long look_at_word(const unsigned long long *from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

// Waits for a word, and looks at it together with what makes its flag.
__device__ __forceinline__ uint32_t take_word(const unsigned long long *from, const Flagged &flagged) {
    unsigned long long word = look_at_word(from);
    const uint32_t flag = flag_of(flagged);
    while ((uint32_t)(word >> 32) != flag) word = look_at_word(from);
    return (uint32_t)word;
}
