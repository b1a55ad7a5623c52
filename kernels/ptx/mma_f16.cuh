// Matrix instructions on f16 with sums in f32: D[16][8] += A[16][16] * B[16][8], and the loads of their fragments (PTX
// ISA, "Matrix fragments for mma.m16n8k16"). Lane l holds rows l / 4 and l / 4 + 8 of A and D, columns 2 (l % 4) and
// the one after it of D, column l / 4 of B.
#pragma once
#include "ptx/cp_async.cuh"

// A from 16 rows in shared memory; lane l gives the address of 8 elements of row l % 16, the first ones or, from lane
// 16 on, the last.
__device__ __forceinline__ void load_rows(uint32_t (&a)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
        : "r"(row)
        : "memory");
}

__device__ __forceinline__ void load_rows(uint32_t (&a)[4], const __half *row) { load_rows(a, shared_address(row)); }

// A from its transpose: lane l gives the address of 8 elements of row l % 8 + l / 16 * 8, the first ones or, where l /
// 8 is odd, the last.
__device__ __forceinline__ void load_columns(uint32_t (&a)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
        : "r"(row)
        : "memory");
}

__device__ __forceinline__ void load_columns(uint32_t (&a)[4], const __half *row) {
    load_columns(a, shared_address(row));
}

// Eight rows of D as rows of B: what stood in row l / 4 and two columns then stands in column l / 4 and two rows.
__device__ __forceinline__ uint32_t transpose(float first, float second) {
    const __half2 pair = __floats2half2_rn(first, second);
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
        : "=r"(out)
        : "r"(reinterpret_cast<const uint32_t &>(pair)));
    return out;
}

__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The larger, or the sum, of what the eight lanes of a column of D hold.
__device__ __forceinline__ float column_max(float v) {
#pragma unroll
    for (int step = 4; step < WARP; step *= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}

__device__ __forceinline__ float column_sum(float v) {
#pragma unroll
    for (int step = 4; step < WARP; step *= 2) v = __fadd_rn(v, __shfl_xor_sync(ALL_LANES, v, step));
    return v;
}
