// Rows of values that go to the host, which does a part of the program, and what it makes of them. One block a row. The
// host's memory for rows has a flag for each, on a line of its own: the number of the step, and one more than that of
// the part that the row was sent for. A row that is waited for comes in the same way; a part of the highest number ends
// all waiting of its step.
#include "device.cuh"

constexpr int MOST_EXCHANGED = 3;
constexpr uint32_t FLAG_WORDS = 8;  // from a row's flag to the next
constexpr uint32_t THREADS = 256;

struct ExchangeArgs {
    uint32_t *own[MOST_EXCHANGED], *shared[MOST_EXCHANGED];  // values on the device, and in the host's memory
    unsigned long long *flags;                               // null where a later launch tells that the rows are there
    const uint32_t *serial;
    uint32_t widths[MOST_EXCHANGED];  // elements of a row
    uint32_t count, part, pad;
};
static_assert(sizeof(ExchangeArgs) == 88, "as in args.rs");

// Copies a row of 32-bit elements, whatever they are; those that the host has written are read anew.
__device__ __forceinline__ void copy_row(const uint32_t *from, uint32_t *to, uint32_t width) {
    const bool is_wide = (((size_t)from | (size_t)to) % 16 == 0) && width % 4 == 0;
    if (is_wide) {
        for (uint32_t i = threadIdx.x; i < width / 4; i += THREADS)
            reinterpret_cast<uint4 *>(to)[i] = __ldcv(reinterpret_cast<const uint4 *>(from) + i);
        return;
    }
    for (uint32_t i = threadIdx.x; i < width; i += THREADS) to[i] = __ldcv(from + i);
}

extern "C" __global__ void __launch_bounds__(THREADS) send_rows(const __grid_constant__ ExchangeArgs args, Shape) {
    await_then_launch();
    const uint32_t row = blockIdx.x;
    for (uint32_t i = 0; i < args.count; i++) {
        const size_t at = (size_t)row * args.widths[i];
        copy_row(args.own[i] + at, args.shared[i] + at, args.widths[i]);
    }
    if (args.flags == nullptr) return;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned long long told = (unsigned long long)*args.serial << 32 | (args.part + 1);
        unsigned long long *flag = args.flags + (size_t)row * FLAG_WORDS;
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(told) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) receive_rows(const __grid_constant__ ExchangeArgs args, Shape) {
    await_dependencies();
    const uint32_t row = blockIdx.x;
    if (threadIdx.x == 0) {
        const unsigned long long *flag = args.flags + (size_t)row * FLAG_WORDS;
        const uint32_t serial = *args.serial;
        unsigned long long told;
        do {
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(told) : "l"(flag) : "memory");
        } while ((uint32_t)(told >> 32) != serial || (uint32_t)told <= args.part);
    }
    __syncthreads();
    for (uint32_t i = 0; i < args.count; i++) {
        const size_t at = (size_t)row * args.widths[i];
        copy_row(args.shared[i] + at, args.own[i] + at, args.widths[i]);
    }
}
