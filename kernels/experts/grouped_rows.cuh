// Products of eight weight rows of a warp with the activations of up to four pairs, on integer matrix instructions.
//
// A lane (g, t), with g = lane / 4 and t = lane % 4, has one of the rows. Of every eight groups it unpacks t and 4 + t,
// which stand in rows g and g + 8 of a tile of the instructions; columns 2t and 2t + 1 of these have a pair's
// activations of the one and of the other group, and zeros for all others. So the lane gets the sums of the groups
// whose scales it has. Sums are added with the tree of `add_neighbours`, where a lane stands for what is a group of
// every slice here.
#pragma once
#include "gemm/lane_groups.cuh"

// Groups that are multiplied at a time.
constexpr uint32_t EIGHT = 8;

// Eights that follow each other and are multiplied together: of four pairs, registers hold one.
template <uint32_t COUNT>
constexpr uint32_t AT_ONCE = COUNT == 4 ? 1 : 2;

// The lane's sums of both of its groups, for each of COUNT pairs.
template <uint32_t COUNT>
using GroupSums = float[COUNT][2];

// Bytes between rows of activations, which keep banks apart.
constexpr uint32_t ROW_PAD = 16;

// Where a lane finds its row, and of the first pair's activations the words of its column, and scale and sums of its
// first group.
struct RowPlaces {
    uint32_t row, words, meta;

    __device__ __forceinline__ void move(uint32_t groups) {
        words += groups * 32, meta += groups * (uint32_t)sizeof(Meta);
    }
};

// The lane's group t of the eight that begins with group `first` of a slice of so many.
template <int TYPE>
__device__ __forceinline__ Places places_of_eight(uint32_t row, uint32_t groups, uint32_t first) {
    constexpr uint32_t BEFORE = code_bytes(TYPE) + high_bytes(TYPE);
    const uint32_t group = first + threadIdx.x % 4;
    Places p;
    p.codes = row + group * 16, p.upper = p.codes + groups * 16;
    p.high = row + group * high_bytes(TYPE) + code_bytes(TYPE) * groups;
    p.scales = row + group * 2 + BEFORE * groups;
    p.blocks = row + first / EIGHT * (TYPE == Q6_K ? 2 : 4) + (BEFORE + 2) * groups;
    return p;
}

// The same so many groups on, and so many eights.
template <int TYPE>
__device__ __forceinline__ Places move_places(Places p, uint32_t groups, uint32_t eights) {
    p.codes += groups * 16, p.upper += groups * 16, p.high += groups * high_bytes(TYPE), p.scales += groups * 2;
    p.blocks += eights * (TYPE == Q6_K ? 2 : 4);
    return p;
}

// The lane's words of activations for its column of the instructions, of group n / 2 for an even column n, of group
// 4 + n / 2 for an odd one, which one of four lanes has. The words of all others are 0, and stay so.
struct ColumnWords {
    uint32_t words[8] = {}, is_mine = threadIdx.x % WARP / 8 == threadIdx.x % 4;

    __device__ __forceinline__ void load(uint32_t at) {
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            asm volatile(
                "{\n.reg .pred mine;\nsetp.ne.u32 mine, %4, 0;\n@mine ld.shared.v4.b32 {%0, %1, %2, %3}, [%5];\n}"
                : "+r"(words[4 * h]), "+r"(words[4 * h + 1]), "+r"(words[4 * h + 2]), "+r"(words[4 * h + 3])
                : "r"(is_mine), "r"(at + 16 * h));
        }
    }
};

// The products of the lower and of the upper half of each group.
template <int TYPE>
__device__ __forceinline__ void multiply_both(
    int (&low)[4], int (&high)[4], const uint32_t (&first)[8], const uint32_t (&second)[8], const uint32_t (&x)[8]) {
    constexpr int NONE[4] = {};
    multiply_words<false>(low, first, second, x, 0, NONE), multiply_words<false>(low, first, second, x, 2, low);
    multiply_words<TYPE == Q4_K>(high, first, second, x, 4, NONE);
    multiply_words<TYPE == Q4_K>(high, first, second, x, 6, high);
}

// `sum` and the products of a group.
template <int TYPE>
__device__ __forceinline__ float add_halves(const RowFactors &row, int low, int high, const uint2 &bits, float sum) {
    Group group;
    group.scale[0] = row.scale[0], group.scale[1] = row.scale[1], group.min[0] = -row.min;
    return add_products<TYPE>(group, low, TYPE == Q4_K ? high >> 4 : high, reinterpret_cast<const Meta &>(bits), sum);
}

// Adds the lane's groups of an eight, whose places are `own` and those of `next` eights on among the pairs'
// activations. Groups from `last` on are behind the end of a row.
template <int TYPE, uint32_t COUNT>
__device__ __forceinline__ void add_eight(GroupSums<COUNT> &sum, const Places &own, ColumnWords &column,
    const RowPlaces &at, uint32_t cols, uint32_t next, uint32_t last) {
    Raw<TYPE> raw[2];
    if constexpr (has_short_slices(TYPE)) {
        // Groups behind the end take the last one's weights: what follows them may be no memory of the block's.
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = next * EIGHT + i * 4 + threadIdx.x % 4, back = group - min(group, last - 1);
            load_own(raw[i], move_places<TYPE>(own, i * 4 - back, 0), 0);
        }
    } else {
        load_own(raw[0], own, 0), load_own(raw[1], move_places<TYPE>(own, 4, 0), 0);
    }
    raw[0].block = raw[1].block = load_block_of<TYPE>(own, 0);
    uint32_t first[8], second[8];
    unpack<TYPE, true>(raw[0], first), unpack<TYPE, true>(raw[1], second);
    const RowFactors factors[2] = {factors_of(raw[0]), factors_of(raw[1])};
#pragma unroll
    for (uint32_t n = 0; n < COUNT; n++) {
        column.load(at.words + n * (cols + ROW_PAD) + next * EIGHT * 32);
        int low[4], high[4];
        multiply_both<TYPE>(low, high, first, second, column.words);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t group = next * EIGHT + i * 4;
            const uint2 meta = load_shared_as<uint2>(at.meta + n * (cols / 4) + group * (uint32_t)sizeof(Meta));
            const float added = add_halves<TYPE>(factors[i], low[3 * i], high[3 * i], meta, sum[n][i]);
            sum[n][i] = has_short_slices(TYPE) && group + threadIdx.x % 4 >= last ? sum[n][i] : added;
        }
    }
}

// Adds the lanes of one eight or of two: they have the sum of the one pair, or of pair `lane / 2 % 2` of each two.
__device__ __forceinline__ void add_lanes(const GroupSums<1> (&sum)[2], float (&out)[1]) {
    const float v = share<2>(share<1>(sum[0][0][0], sum[0][0][1]), share<1>(sum[1][0][0], sum[1][0][1]));
    const float eight = __fadd_rn(v, __shfl_xor_sync(ALL_LANES, v, 1));
    out[0] = __fadd_rn(eight, __shfl_xor_sync(ALL_LANES, eight, 2));
}
template <uint32_t COUNT, uint32_t EIGHTS>
__device__ __forceinline__ void add_lanes(const GroupSums<COUNT> (&sum)[EIGHTS], float (&out)[COUNT / 2]) {
#pragma unroll
    for (uint32_t n = 0; n < COUNT; n += 2) {
        float v[EIGHTS];
#pragma unroll
        for (uint32_t i = 0; i < EIGHTS; i++)
            v[i] = share<2>(share<1>(sum[i][n][0], sum[i][n][1]), share<1>(sum[i][n + 1][0], sum[i][n + 1][1]));
        const float eight = EIGHTS == 1 ? v[0] : share<1>(v[0], v[EIGHTS - 1]);
        out[n / 2] = __fadd_rn(eight, __shfl_xor_sync(ALL_LANES, eight, 1));
    }
}

// The products of the lane's row with COUNT pairs, as `add_lanes` leaves them.
template <int TYPE, uint32_t COUNT>
__device__ __forceinline__ void multiply_row(const Matrix &m, RowPlaces at, float (&out)[(COUNT + 1) / 2]) {
    constexpr uint32_t COUPLES = (COUNT + 1) / 2, EIGHTS = AT_ONCE<COUNT>, STEP = EIGHTS * EIGHT;
    const uint32_t groups = m.cols / 32, slices = (groups + SLICE_GROUPS - 1) / SLICE_GROUPS,
                   rest = groups - (slices - 1) * SLICE_GROUPS;
    ColumnWords column;
    float before[COUPLES] = {};  // the eight before, where they come by themselves
#pragma unroll 1
    for (uint32_t first = 0; first < SLICE_GROUPS; first += STEP, at.move(STEP)) {
        GroupSums<COUNT> sum[EIGHTS] = {};
        RowPlaces own = at;
        const uint32_t count = first < rest ? slices : slices - 1;
#pragma unroll 1
        for (uint32_t slice = 0; slice < count; slice++, own.row += m.slice_bytes, own.move(SLICE_GROUPS)) {
            const uint32_t of_slice = slice + 1 < slices ? SLICE_GROUPS : rest, last = of_slice - first;
            const Places places = places_of_eight<TYPE>(own.row, of_slice, first);
            add_eight<TYPE, COUNT>(sum[0], places, column, own, m.cols, 0, last);
            if constexpr (EIGHTS == 2) {
                if (last > EIGHT)
                    add_eight<TYPE, COUNT>(sum[1], move_places<TYPE>(places, EIGHT, 1), column, own, m.cols, 1, last);
            }
        }
        float added[COUPLES];
        add_lanes(sum, added);
        const bool ends_sixteen = first % (2 * EIGHT) + STEP == 2 * EIGHT;
#pragma unroll
        for (uint32_t i = 0; i < COUPLES; i++) {
            const float sixteen = EIGHTS == 1 ? __fadd_rn(before[i], added[i]) : added[i];
            before[i] = added[i];
            if (ends_sixteen) out[i] = first < 2 * EIGHT ? sixteen : __fadd_rn(out[i], sixteen);
        }
    }
}
