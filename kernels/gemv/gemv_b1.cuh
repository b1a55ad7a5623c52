// A single row of activations times up to six quantized matrices: `multiply` of gemv.cuh with the same sums in the
// same order, for the launches that are most of a step of one row. What counts there is the way from the end of a
// block's wait to its own end, so all that can be known before the wait is known before, and blocks of activations are
// made two at a time.
#pragma once
#include "gemv/gemv.cuh"

// Units of a part of two rows side by side, and of a row that stands alone: `units` of the arguments are twice, and
// once, as many.
constexpr uint32_t PAIR_UNITS = 2, SINGLE_UNITS = 4;
// Units of the row's activations stand one behind the other: lower halves, upper halves, factors. A thread makes a quad
// of each.
constexpr uint32_t UNIT_QUADS = QUANT_COLS / 4;
static_assert(UNIT_QUADS == WARPS * WARP && NORM_THREADS == WARPS * WARP, "a thread has a quad of each unit");

// Whether registers hold two units at once: not of the widest type, and on other chips not of any with 8-bit codes.
#if __CUDA_ARCH__ == 900
template <uint32_t TYPE>
constexpr bool HOLDS_TWO = TYPE != BYTES;
#else
template <uint32_t TYPE>
constexpr bool HOLDS_TWO = code_bytes(TYPE) < 32;
#endif

// Blocks of an SM that registers leave room for; other chips' code would spill with as few.
#if __CUDA_ARCH__ == 900
constexpr int GEMV_B1_BLOCKS = 4;
#else
constexpr int GEMV_B1_BLOCKS = 3;
#endif

// Shared memory of a block beside its rings and its input.
struct GemvB1Storage {
    SharedStorage<1> space;
    LevelWords level_words;
};

__device__ __forceinline__ void store_shared(uint32_t at, uint32_t v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t at, const Meta &v) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(__float_as_uint(v.scale)),
        "r"(reinterpret_cast<const uint32_t &>(v.sums))
        : "memory");
}

// Where the activations of a unit stand; SPREAD with room behind each quarter of a plane, so that lanes a quarter apart
// take different banks.
template <bool SPREAD>
struct UnitLayout {
    static constexpr uint32_t ROOM = SPREAD ? 1 : 0, GROUPS = SLICE_GROUPS + 4 * ROOM;
    static constexpr uint32_t HIGH = GROUPS * 16, META = 2 * HIGH, BYTES = META + GROUPS * sizeof(Meta);
    static __device__ __forceinline__ uint32_t place(uint32_t group) {
        return group + ROOM * (group / (SLICE_GROUPS / 4));
    }
    static __device__ __forceinline__ uint32_t codes(uint32_t group) { return place(group) * 16; }
    static __device__ __forceinline__ uint32_t meta(uint32_t group) { return META + place(group) * sizeof(Meta); }
};
static_assert(UnitLayout<false>::HIGH == UPPER && UnitLayout<false>::BYTES == ROW_OF_UNIT, "the same without room");

// The input of a norm, and its weights.
struct NormInput {
    const float *x, *weights;
    uint32_t cols;
};

// What a thread has of a norm's input and of its weights, from the time it asks for them until they are blocks. It may
// ask for weights before the block's wait, for values only behind it.
template <bool SPREAD = false>
struct NormedBlocks {
    using Layout = UnitLayout<SPREAD>;
    const uint32_t quads, own = threadIdx.x % 8;
    const float4 *x, *weights;
    uint32_t to, meta_to;
    float4 early[NORM_QUADS], values[NORM_QUADS];

    __device__ __forceinline__ NormedBlocks(const NormInput &input, uint32_t units)
        : quads(input.cols / 4), x(reinterpret_cast<const float4 *>(input.x) + threadIdx.x),
          weights(reinterpret_cast<const float4 *>(input.weights) + threadIdx.x),
          to(units + (own < 4 ? 0 : Layout::HIGH) + Layout::codes(threadIdx.x / 8) + own % 4 * 4),
          meta_to(units + Layout::meta(threadIdx.x / 8)) {}

    __device__ __forceinline__ bool has(uint32_t i) const { return threadIdx.x + i * UNIT_QUADS < quads; }

    __device__ __forceinline__ void ask_for_weights() {
#pragma unroll
        for (int i = 0; i < NORM_QUADS; i++)
            early[i] = has(i) ? __ldg(weights + i * UNIT_QUADS) : make_float4(0, 0, 0, 0);
        keep(to), keep(meta_to);
    }

    __device__ __forceinline__ void ask_for_values() {
#pragma unroll
        for (int i = 0; i < NORM_QUADS; i++) values[i] = has(i) ? x[i * UNIT_QUADS] : make_float4(0, 0, 0, 0);
    }

    // Makes two blocks' quads of values times their weights.
    __device__ __forceinline__ void take(uint32_t first, const float4 (&v)[2], const float4 (&w)[2]) const {
        const float4 weighed[2] = {weigh(v[0], w[0]), weigh(v[1], w[1])};
        uint32_t codes[2];
        Meta meta[2];
        encode_quads<2>(weighed, codes, meta);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (!has(first + i)) continue;
            store_shared(to + (first + i) * Layout::BYTES, codes[i]);
            if (own == 0) store_shared(meta_to + (first + i) * Layout::BYTES, meta[i]);
        }
    }

    // Makes the blocks; the warps' shares of the squares have the order of `weigh_row`.
    __device__ __forceinline__ void put(float *shares) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < NORM_QUADS; i++) sum = add_squares(values[i], sum);
        if (2 * UNIT_QUADS < quads) take(2, {values[2], values[3]}, {early[2], early[3]});
        if (quads <= NORM_QUADS * UNIT_QUADS) {
            // The squares go their way through the warp beside the blocks.
            sum = warp_sum(sum);
            take(0, {values[0], values[1]}, {early[0], early[1]});
            if (threadIdx.x % WARP == 0) shares[threadIdx.x / WARP] = sum;
            return;
        }
        take(0, {values[0], values[1]}, {early[0], early[1]});
#pragma unroll 1
        for (uint32_t i = NORM_QUADS; i * UNIT_QUADS < quads; i += 2) {
            float4 v[2], w[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                v[j] = has(i + j) ? x[(i + j) * UNIT_QUADS] : make_float4(0, 0, 0, 0),
                w[j] = has(i + j) ? __ldg(weights + (i + j) * UNIT_QUADS) : make_float4(0, 0, 0, 0);
                sum = add_squares(v[j], sum);
            }
            take(i, v, w);
        }
        share_squares(sum, shares);
    }
};

// Makes blocks of the values that a norm takes, times their weights, behind the block's wait. Reads what `add` names,
// if anything, meanwhile.
template <bool SPREAD = false>
__device__ __forceinline__ void put_normed(
    const NormInput &input, uint32_t units, float *shares, const float *add, float &added) {
    NormedBlocks<SPREAD> blocks(input, units);
    blocks.ask_for_weights();
    launch_then_await();
    blocks.ask_for_values();
    if (add != nullptr) added = *add;
    blocks.put(shares);
}

// The same for blocks that producers made: a thread takes 16 codes of every fourth unit, and the factors of a group of
// every eighth.
__device__ __forceinline__ void put_blocks(const MatvecArgs &args, uint8_t *units, const float *add, float &added) {
    constexpr uint32_t THREADS = WARPS * WARP, AHEAD = 4;
    const uint32_t halves = args.cols / 16, groups = args.cols / 32;
    const int4 *q = reinterpret_cast<const int4 *>(args.x.q) + threadIdx.x;
    const int2 *meta = reinterpret_cast<const int2 *>(args.x.meta) + threadIdx.x;
    uint8_t *to = units + threadIdx.x / (2 * SLICE_GROUPS) * ROW_OF_UNIT + threadIdx.x % 2 * UPPER +
        threadIdx.x / 2 % SLICE_GROUPS * 16;
    uint8_t *meta_to =
        units + threadIdx.x / SLICE_GROUPS * ROW_OF_UNIT + FACTORS + threadIdx.x % SLICE_GROUPS * sizeof(Meta);
    launch_then_await();
#pragma unroll 1
    for (uint32_t start = 0; start < halves; start += AHEAD * THREADS) {
        int4 codes[AHEAD];
        int2 factors[AHEAD / 2];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (start + i * THREADS + threadIdx.x < halves) codes[i] = q[start + i * THREADS];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD / 2; i++) {
            if (start / 2 + i * THREADS + threadIdx.x < groups) factors[i] = meta[start / 2 + i * THREADS];
        }
        if (add != nullptr && start == 0) added = *add;
        uint8_t *now = to + start / (2 * SLICE_GROUPS) * ROW_OF_UNIT,
                *meta_now = meta_to + start / (2 * SLICE_GROUPS) * ROW_OF_UNIT;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (start + i * THREADS + threadIdx.x < halves)
                *reinterpret_cast<int4 *>(now + i * (THREADS / 64) * ROW_OF_UNIT) = codes[i];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD / 2; i++) {
            if (start / 2 + i * THREADS + threadIdx.x < groups)
                *reinterpret_cast<int2 *>(meta_now + i * (THREADS / 32) * ROW_OF_UNIT) = factors[i];
        }
    }
}

// Adds the products of a unit of COUNT rows, `distance` bytes apart, which has so many groups: all 32 where it is
// WHOLE.
template <uint32_t TYPE, int COUNT, bool WHOLE>
__device__ __forceinline__ void add_blocks(const uint8_t *rows, uint32_t distance, const uint8_t *x, uint32_t of_unit,
    const LevelWords &level_words, float (&sum)[2]) {
    // Lanes behind the last group add nothing: they take its weights, which stand where they may look.
    const uint32_t lane = threadIdx.x % WARP, groups = WHOLE ? SLICE_GROUPS : of_unit,
                   index = WHOLE ? lane : min(lane, groups - 1);
    const int4 a = reinterpret_cast<const int4 *>(x)[index], b = reinterpret_cast<const int4 *>(x + UPPER)[index];
    const int2 factors = reinterpret_cast<const int2 *>(x + FACTORS)[index];
    const Meta meta{__int_as_float(factors.x), reinterpret_cast<const short2 &>(factors.y)};
#pragma unroll
    for (int r = 0; r < COUNT; r++) {
        const Group g = load_group<TYPE, false>(rows + r * distance, groups, index, level_words);
        const float added = add_group<TYPE, false>(g, a, b, meta, sum[r]);
        sum[r] = WHOLE || lane < groups ? added : sum[r];
    }
}

// The same for a part of MOST units, or of as many as have the row's `groups` that are left.
template <uint32_t TYPE, int COUNT, uint32_t MOST>
__device__ __forceinline__ void add_blocks_of_part(const uint8_t *rows, uint32_t distance, const uint8_t *x,
    uint32_t groups, const LevelWords &level_words, float (&sum)[2]) {
    if (HOLDS_TWO<TYPE> && COUNT == 2 && groups >= MOST * SLICE_GROUPS) {
        add_blocks<TYPE, COUNT, true>(rows, distance, x, 0, level_words, sum);
        add_blocks<TYPE, COUNT, true>(rows + UNIT_BYTES<TYPE>, distance, x + ROW_OF_UNIT, 0, level_words, sum);
        return;
    }
#pragma unroll 1
    for (uint32_t unit = 0; unit < MOST && unit * SLICE_GROUPS < groups; unit++) {
        const uint32_t of_unit = min((uint32_t)SLICE_GROUPS, groups - unit * SLICE_GROUPS);
        const uint8_t *row = rows + unit * UNIT_BYTES<TYPE>, *own = x + unit * ROW_OF_UNIT;
        // The last slice of an odd number of whole ones is whole too.
        if (of_unit == SLICE_GROUPS) add_blocks<TYPE, COUNT, true>(row, distance, own, 0, level_words, sum);
        else add_blocks<TYPE, COUNT, false>(row, distance, own, of_unit, level_words, sum);
    }
}

// The lane's sums of the next two rows, or of a row that is alone.
template <uint32_t TYPE>
__device__ __forceinline__ void add_rows_of_blocks(
    Streams &streams, const Matrix &m, const uint8_t *x, const LevelWords &level_words, float (&sum)[2]) {
    const uint32_t taken = streams.units * SLICE_GROUPS;
#pragma unroll 1
    for (uint32_t groups = m.cols / 32;; groups -= taken, x += streams.units * ROW_OF_UNIT) {
        const uint8_t *stage = streams.wait();
        if (streams.rows[1] > 0)
            add_blocks_of_part<TYPE, 2, PAIR_UNITS>(stage, streams.part_bytes, x, groups, level_words, sum);
        else add_blocks_of_part<TYPE, 1, SINGLE_UNITS>(stage, 0, x, groups, level_words, sum);
        streams.release();
        if (groups <= taken) return;
    }
}

// The whole block for one type of weights.
template <uint32_t TYPE>
__device__ __forceinline__ void gemv_b1(const MatvecArgs &args, const Segment &segment, GemvB1Storage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    SharedStorage<1> &space = own.space;
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP;
    const bool pairs = args.gated.x != nullptr, norms = args.norm != nullptr;
    const Matrix &m = segment.matrix;

    Streams streams{};
    const Rows rows = start_streams<TYPE>(streams, args, segment, PAIR_UNITS, SINGLE_UNITS, shared, space.barriers[0]);
    const uint32_t first = rows.first, end = rows.end;

    // Eight sums are finished at a time, every four lanes one: of four rounds of the loop the two rows of each. What is
    // added to the first ones is read long before it is needed.
    constexpr uint32_t ROUNDS = SUM_ROWS / 2;
    const uint32_t side = lane / 4 % 2, round = lane / 8, column = first + WARPS * (2 * round + side);
    const bool has_column = !pairs && lane % 4 == 0 && column < end;
    const float bias = has_column && segment.bias != nullptr ? __ldg(segment.bias + column) : 0.0f;
    const float *add = has_column && segment.adds ? segment.out + column : nullptr;
    make_level_words<TYPE>(own.level_words);
    uint8_t *units = shared + WARPS * args.stages * args.stage_bytes;
    float residual = 0.0f;
    if (norms)
        put_normed(NormInput{args.x.x, args.norm, args.cols}, shared_address(units), space.shares, add, residual);
    else put_blocks(args, units, add, residual);
    __syncthreads();
    LevelWords level_words{};
    if constexpr (has_levels(TYPE)) level_words = own.level_words;

    unsigned long long key = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < streams.rows[0]; i++) {
        float sum[2] = {};
        add_rows_of_blocks<TYPE>(streams, m, units, level_words, sum);
        float *place = space.sums[warp] + i % ROUNDS * 2 * SUM_STRIDE + lane;
        place[0] = sum[0], place[SUM_STRIDE] = sum[1];
        if (i % ROUNDS != ROUNDS - 1 && i + 1 != streams.rows[0]) continue;
        __syncwarp();
        const uint32_t row = i / ROUNDS * ROUNDS + round;
        // The norm's factor is made beside the sums, which need it last. A norm of another launch has left its own.
        float factor = 1.0f;
        if (norms) factor = norm_factor(space.shares, args.cols, args.eps);
        else if (args.x.factors != nullptr) factor = *args.x.factors;
        const float v = __fmul_rn(add_lanes(space.sums[warp]), factor);
        if (pairs) {
            const float up = __shfl_down_sync(ALL_LANES, v, 4);
            if (lane % 8 == 0 && row <= i) space.outputs[0][warp + WARPS * row] = gated(args.unit, v, up);
        } else if (const uint32_t col = first + WARPS * (2 * row + side); lane % 4 == 0 && row <= i && col < end) {
            const float plus = i < ROUNDS || segment.bias == nullptr ? bias : segment.bias[col];
            put_sum(args, segment, segment.out, col, v, plus, i < ROUNDS || !segment.adds ? residual : segment.out[col],
                key);
        }
        __syncwarp();
    }
    finish_block<1>(args, m.rows, space, key);
}

// Code for types that a launch lacks makes it slower: there is a kernel for each type, for the pairs that files mix,
// and for all.
#define GEMV_OF_TYPES(name, TYPE, OTHER)                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, GEMV_B1_BLOCKS)                          \
        name(const __grid_constant__ MatvecArgs args, Shape) {                                         \
        __shared__ GemvB1Storage space;                                                                \
        const Segment &segment = own_segment(args);                                                    \
        if (TYPE == OTHER || segment.matrix.dtype == TYPE) return gemv_b1<TYPE>(args, segment, space); \
        return gemv_b1<OTHER>(args, segment, space);                                                   \
    }
