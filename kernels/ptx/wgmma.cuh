// Matrix instructions of a warpgroup (PTX ISA: wgmma): D[64][N] += A[64][16] * B[16][N] in f16 with sums in f32, A in
// registers, B in shared memory. Thread (g, t) of warp w holds of D rows 16w + g and 16w + g + 8, columns 8i + 2t and
// the one after it: sums 4i to 4i + 3.
#pragma once
#include <stdint.h>

// Before the first instruction that reads registers which were written since.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most so many groups are under way.
template <int PENDING>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// B by its columns, 128 bytes of 64 elements each, eight of them 1024 bytes after the eight before, swizzled; `at` is a
// shared address, a multiple of 1024 but for the element that products begin with.
__device__ __forceinline__ uint64_t operand_at(uint32_t at) {
    uint64_t operand;
    asm("mov.b64 %0, {%1, %2};" : "=l"(operand) : "r"(1 << 16 | at >> 4), "r"(1 << 30 | 64));
    return operand;
}

#define SUM8(d, i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define SUM32(d, i) SUM8(d, i), SUM8(d, i + 8), SUM8(d, i + 16), SUM8(d, i + 24)
#define OPERANDS(a, b) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

// Adds to D.
template <int N>
__device__ __forceinline__ void multiply_add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b);

template <>
__device__ __forceinline__ void multiply_add<16>(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
        : SUM8(d, 0)
        : OPERANDS(a, b));
}

template <>
__device__ __forceinline__ void multiply_add<32>(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : SUM8(d, 0), SUM8(d, 8)
        : OPERANDS(a, b));
}

template <>
__device__ __forceinline__ void multiply_add<64>(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : SUM32(d, 0)
        : OPERANDS(a, b));
}

template <>
__device__ __forceinline__ void multiply_add<128>(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : SUM32(d, 0), SUM32(d, 32)
        : OPERANDS(a, b));
}

template <>
__device__ __forceinline__ void multiply_add<256>(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 0;"
        : SUM32(d, 0), SUM32(d, 32), SUM32(d, 64), SUM32(d, 96)
        : OPERANDS(a, b));
}

#undef SUM8
#undef SUM32
#undef OPERANDS
