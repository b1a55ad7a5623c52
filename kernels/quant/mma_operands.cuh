// Groups of 32 weights as operands of tensor cores (mma.m16n8k32), and the factors of their sums.
//
// A lane (g, t), with g = lane / 4 and t = lane % 4, holds values 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3 of rows g and
// g + 8 of a tile of 16: words t and 4 + t of a group. What is computed of them has the bits that `add_group` gives.
#pragma once
#include "quant/unpack.cuh"

// 2^23, as the upper byte of a float whose lowest byte is a number, and as that float.
constexpr uint32_t BYTE_BITS = 0x4b000000;
constexpr float BYTE_BASE = 8388608.0f;

// Factors of a group of one row: of both halves for types that have two scales, and what takes INTEGER_BASE away again
// once it is scaled.
struct RowFactors {
    float scale[2], base[2], min;
};

// Scale of 32 activations and their sum.
struct ColumnFactors {
    float scale, sum;
};

// Factors that 8 groups of a row share, and what takes BYTE_BASE away.
struct BlockFactors {
    float scale, scale_base, min, min_base;
};

template <int TYPE>
__device__ __forceinline__ BlockFactors load_block(const uint8_t *block) {
    BlockFactors f{};
    if constexpr (has_min(TYPE)) {
        const float2 d = __half22float2(read_at<__half2>(block, 0));
        f.scale = d.x, f.scale_base = -(d.x * BYTE_BASE), f.min = -d.y, f.min_base = d.y * BYTE_BASE;
    } else {
        f.scale = __half2float(read_at<__half>(block, 0));
    }
    return f;
}

__device__ __forceinline__ float byte_float(uint32_t word, int byte) {
    return __uint_as_float(__byte_perm(word, BYTE_BITS, 0x7440 | byte));
}

// Every product below is exact: scales of blocks have 11 bits, those of groups 8.
template <int TYPE>
__device__ __forceinline__ RowFactors load_factors(const BlockFactors &block, uint32_t pair) {
    RowFactors f{};
    if constexpr (has_halves(TYPE)) {
        const uint32_t shifted = pair ^ 0x8080;
        f.scale[0] = block.scale * (byte_float(shifted, 0) - (BYTE_BASE + 128.0f));
        f.scale[1] = block.scale * (byte_float(shifted, 1) - (BYTE_BASE + 128.0f));
        f.base[1] = -INTEGER_BASE * f.scale[1];
    } else {
        f.scale[0] = __fmaf_rn(block.scale, byte_float(pair, 0), block.scale_base);
        f.min = __fmaf_rn(block.min, byte_float(pair, 1), block.min_base);
        f.base[0] = -INTEGER_BASE * f.scale[0];
    }
    return f;
}

// Of Q8_0, which has a scale for each group alone.
__device__ __forceinline__ RowFactors plain_factors(const uint8_t *scale) {
    RowFactors f{};
    f.scale[0] = __half2float(read_at<__half>(scale, 0));
    f.base[0] = -INTEGER_BASE * f.scale[0];
    return f;
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(address));
}

// Bytes 0 to 63 less 32.
__device__ __forceinline__ uint32_t less_32(uint32_t bytes) {
    return ((bytes | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
}

// A group of 32 rows for two tiles, which stand STRIDE bytes apart in shared memory as slices of GROUPS groups; `rows`
// is moved by that group.
template <int TYPE, uint32_t STRIDE, uint32_t GROUPS>
__device__ __forceinline__ void load_fragments(uint32_t (&a)[2][4], const uint8_t *rows, uint32_t index) {
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4,
                   at = (uint32_t)__cvta_generic_to_shared(rows) + lane * STRIDE + index * 16;
    uint32_t codes[4];
    load_matrices(codes, at);
    if constexpr (TYPE == Q8_0) {
        uint32_t upper[4];
        load_matrices(upper, at + 16 * GROUPS);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i / 2][i % 2] = codes[i], a[i / 2][2 + i % 2] = upper[i];
        return;
    }
    const uint8_t *high = rows + lane / 4 * STRIDE + code_bytes(TYPE) * GROUPS + index * high_bytes(TYPE);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = codes[i] & 0x0f0f0f0f, upper = codes[i] >> 4 & 0x0f0f0f0f;
        if constexpr (TYPE == Q5_K) {
            const uint32_t bits = read_at<uint32_t>(high + 8 * i * STRIDE, 0) >> t;
            low |= bits << 4 & 0x10101010, upper |= bits & 0x10101010;
        }
        if constexpr (TYPE == Q6_K) {
            const uint2 bits = read_at<uint2>(high + 8 * i * STRIDE, 0);
            low = less_32(low | (bits.x >> (2 * t) << 4 & 0x30303030)),
            upper = less_32(upper | (bits.y >> (2 * t) << 4 & 0x30303030));
        }
        a[i / 2][i % 2] = low, a[i / 2][2 + i % 2] = upper;
    }
}

template <typename V>
__device__ __forceinline__ V load_word(uint32_t at) {
    V v;
    if constexpr (sizeof(V) == 4) asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    else asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

// A group of 32 rows for two tiles, which stand STRIDE bytes apart in shared memory with GROUPS groups each; `at` is
// the address of the lane's row.
template <int TYPE, uint32_t STRIDE, uint32_t GROUPS>
__device__ __forceinline__ void load_rows(uint32_t (&a)[2][4], uint32_t at, uint32_t index) {
    uint32_t codes[4];
    load_matrices(codes, at + index * 16);
    if constexpr (TYPE == Q8_0) {
        uint32_t upper[4];
        load_matrices(upper, at + index * 16 + 16 * GROUPS);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i / 2][i % 2] = codes[i], a[i / 2][2 + i % 2] = upper[i];
        return;
    }
    if constexpr (has_levels(TYPE)) {
        constexpr Levels TABLE = levels_of(TYPE);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t numbers = codes[i] & 0x77777777u, halves = (codes[i] >> 1 & 0x44444444u) | 0x32103210u;
            a[i / 2][i % 2] = look_up(TABLE, numbers, halves);
            a[i / 2][2 + i % 2] = look_up(TABLE, numbers >> 16, halves >> 16);
        }
        return;
    }
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4,
                   high = at - (lane - lane / 4) * STRIDE + code_bytes(TYPE) * GROUPS + index * high_bytes(TYPE);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = codes[i] & 0x0f0f0f0f, upper = codes[i] >> 4 & 0x0f0f0f0f;
        if constexpr (TYPE == Q5_K) {
            const uint32_t bits = load_word<uint32_t>(high + 8 * i * STRIDE) >> t;
            low |= bits << 4 & 0x10101010, upper |= bits & 0x10101010;
        }
        if constexpr (TYPE == Q6_K) {
            const uint2 bits = load_word<uint2>(high + 8 * i * STRIDE);
            low = less_32(low | (bits.x >> (2 * t) << 4 & 0x30303030)),
            upper = less_32(upper | (bits.y >> (2 * t) << 4 & 0x30303030));
        }
        a[i / 2][i % 2] = low, a[i / 2][2 + i % 2] = upper;
    }
}

// Sums of 32 products each, on top of INTEGER_BITS.
__device__ __forceinline__ void multiply_groups(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
        "%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(INTEGER_BITS));
}

// The same for 16 values.
__device__ __forceinline__ void multiply_halves(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(INTEGER_BITS));
}

// `sum` and the sums of a group's products, of both halves where these have scales of their own, each on top of
// INTEGER_BITS.
template <int TYPE>
__device__ __forceinline__ float add_sums(
    const RowFactors &row, int low, int high, const ColumnFactors &column, float sum) {
    float part;
    if constexpr (has_halves(TYPE)) {
        part = __fmaf_rn(row.scale[1], __int_as_float(high), row.base[1]);
        part = __fmaf_rn(row.scale[0], __fsub_rn(__int_as_float(low), INTEGER_BASE), part);
    } else if constexpr (TYPE == MXFP4) {
        // The largest scales times INTEGER_BASE are no finite numbers.
        part = __fmul_rn(row.scale[0], __fsub_rn(__int_as_float(low), INTEGER_BASE));
    } else {
        part = __fmaf_rn(row.scale[0], __int_as_float(low), row.base[0]);
    }
    if constexpr (has_min(TYPE)) part = __fmaf_rn(row.min, column.sum, part);
    return __fmaf_rn(column.scale, part, sum);
}

// Adds the products of a group: rows g and g + 8 times columns 2t and 2t + 1.
template <int TYPE>
__device__ __forceinline__ void add_tile(float (&sum)[4], const uint32_t (&a)[4], const RowFactors (&rows)[2],
    const uint32_t (&b)[2], const ColumnFactors (&columns)[2]) {
    int low[4], high[4];
    if constexpr (has_halves(TYPE)) {
        multiply_halves(low, a[0], a[1], b[0]);
        multiply_halves(high, a[2], a[3], b[1]);
    } else {
        multiply_groups(low, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] = add_sums<TYPE>(rows[i / 2], low[i], high[i], columns[i % 2], sum[i]);
    }
}

// Neighbours first, then both of their sums.
__device__ __forceinline__ float add_four(float a, float b, float c, float d) {
    return __fadd_rn(__fadd_rn(a, b), __fadd_rn(c, d));
}
