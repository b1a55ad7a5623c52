// Threads that bring the stages of tiles to shared memory: codes as they are, scales as floats, which pass through
// registers.
#pragma once
#include "gemm/scheduler.cuh"
#include "quant/mma_operands.cuh"

// Eight bytes that this kernel's producers wrote.
__device__ __forceinline__ int2 load_meta(const Meta *at) {
    int2 v;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
        : "=r"(v.x), "=r"(v.y)
        : "l"(__cvta_generic_to_global(at))
        : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t at, const float2 &v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}

// Scale of the 32 activations of a group, and their sum.
__device__ __forceinline__ float2 column_factors(const int2 &meta) {
    return make_float2(
        __int_as_float(meta.x), __fsub_rn(__int_as_float(__dp2a_lo(meta.y, 0x0101, INTEGER_BITS)), INTEGER_BASE));
}

// Bytes of a group's own factors.
__host__ __device__ constexpr uint32_t factor_bytes(uint32_t dtype) {
    return bytes_of_group(dtype).scales + bytes_of_group(dtype).floats;
}

// Two factors of a group of a row from its own, which are the lowest bits of `own`, and those of its block.
template <int TYPE>
__device__ __forceinline__ float2 row_factors(uint32_t own, uint32_t block) {
    if constexpr (TYPE == Q8_0) return make_float2(__half2float(__ushort_as_half((unsigned short)own)), 0.0f);
    if constexpr (TYPE == MXFP4) return make_float2(half_power(own & 255), 0.0f);
    const RowFactors f = load_factors<TYPE>(load_block<TYPE>(reinterpret_cast<const uint8_t *>(&block)), own);
    return make_float2(f.scale[0], has_halves(TYPE) ? f.scale[1] : f.min);
}

// A copier's part of a stage has come, or is on its way.
__device__ __forceinline__ void tell_full(uint32_t full) {
    // Once the thread's copies so far have come.
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
    __syncwarp();
    if (threadIdx.x % WARP == 0) arrive(full);
}

// A thread that copies, of every stage of a tile, four runs of codes of rows, as many of columns, and the factors of a
// row and of two columns.
template <class Tiles>
struct Copier {
    using T = typename Tiles::T;
    static constexpr uint32_t ROW_STEP = COPIERS / QUAD, COLUMN_STEP = COPIERS / (2 * QUAD);
    static constexpr uint32_t ROW_TIMES = T::ROWS / ROW_STEP, COLUMN_TIMES = T::COLS / COLUMN_STEP,
                              META_TIMES = (T::COLS * QUAD + COPIERS - 1) / COPIERS;
    static_assert(T::ROWS <= COPIERS && ROW_TIMES % 2 == 0, "shares of copiers");
    const Tiles &tiles;
    const uint32_t own = threadIdx.x - T::THREADS;
    // Where all these begin in the next stage.
    const uint8_t *rows[ROW_TIMES], *row;
    const int8_t *columns[COLUMN_TIMES];
    const Meta *metas[META_TIMES];
    // Scales on their way to shared memory, and the stage that waits for them.
    uint32_t scale_words[2], block, pending = 0;
    int2 sums[META_TIMES];

    __device__ __forceinline__ explicit Copier(const Tiles &tiles) : tiles(tiles) {}

    // Rows and columns past the last are the last.
    template <class Coord>
    __device__ __forceinline__ void find(const Coord &at) {
        const TileRows m = tiles.rows_of(at);
        const uint32_t shift = tiles.is_gated() ? T::ROWS / 2 : 0;
#pragma unroll
        for (uint32_t i = 0; i < ROW_TIMES; i++) {
            const uint32_t at_row = at.row + own / QUAD + i * ROW_STEP - (i < ROW_TIMES / 2 ? 0 : shift);
            rows[i] =
                (i < ROW_TIMES / 2 ? m.lower : m.upper) + ((size_t)min(at_row, m.last) * m.row_bytes + own % QUAD * 16);
        }
        row = (own < T::ROWS / 2 ? m.lower : m.upper) +
            (size_t)min(at.row + own - (own < T::ROWS / 2 ? 0 : shift), m.last) * m.row_bytes;
#pragma unroll
        for (uint32_t i = 0; i < COLUMN_TIMES; i++) {
            columns[i] = tiles.args.x.q +
                (tiles.x_row(at, own / (2 * QUAD) + i * COLUMN_STEP) * tiles.args.cols + own % (2 * QUAD) * 16);
        }
#pragma unroll
        for (uint32_t i = 0; i < META_TIMES; i++) {
            metas[i] = tiles.args.x.meta + (tiles.x_row(at, (i * COPIERS + own) / QUAD) * tiles.groups() + own % QUAD);
        }
        skip(tiles.rank() * T::PASSES * 16 * QUAD, tiles.rank() * T::PASSES * QUAD),
            row -= tiles.rank() * T::PASSES * 16 * QUAD;
    }

    // Moves on by bytes of rows and groups of columns.
    __device__ __forceinline__ void skip(int64_t bytes, int groups) {
#pragma unroll
        for (uint32_t i = 0; i < ROW_TIMES; i++) rows[i] += bytes;
        row += bytes;
#pragma unroll
        for (uint32_t i = 0; i < COLUMN_TIMES; i++) columns[i] += 32 * groups;
#pragma unroll
        for (uint32_t i = 0; i < META_TIMES; i++) metas[i] += groups;
    }

    template <int TYPE>
    __device__ __forceinline__ void load_factors(uint32_t quad, uint32_t slice_groups, uint32_t groups) {
        constexpr uint32_t ABOVE = code_bytes(TYPE) + high_bytes(TYPE), OWN = factor_bytes(TYPE),
                           SHARED = bytes_of_group(TYPE).shared;
        const uint8_t *scales = row + (ABOVE * slice_groups + OWN * QUAD * quad),
                      *shared = row + (ABOVE + OWN) * slice_groups;
        if (T::ROWS == COPIERS || own < T::ROWS) {
            scale_words[0] = __ldg(reinterpret_cast<const uint32_t *>(scales));
            // A short slice may end before this.
            if (OWN > 1 && (!has_short_slices(TYPE) || groups > 2))
                scale_words[1] = __ldg(reinterpret_cast<const uint32_t *>(scales) + 1);
            if constexpr (SHARED == 2) block = __ldg(reinterpret_cast<const uint16_t *>(shared) + quad / 2);
            else if constexpr (SHARED == 4) block = __ldg(reinterpret_cast<const uint32_t *>(shared) + quad / 2);
        }
        if (own % QUAD >= groups) return;
#pragma unroll
        for (uint32_t i = 0; i < META_TIMES; i++) sums[i] = load_meta(metas[i]);
    }

    // Factors of rows g and g + 8 of a tile of 16 stand side by side.
    template <int TYPE>
    __device__ __forceinline__ void finish() {
        if (pending == 0) return;
        if (T::ROWS == COPIERS || own < T::ROWS) {
            const uint32_t to = pending + T::ROW_FACTORS_AT + (own / 16 * 16 + own % 8 * 2 + own / 8 % 2) * 8;
#pragma unroll
            for (int j = 0; j < (int)QUAD; j++) {
                constexpr int A_WORD = 4 / factor_bytes(TYPE);
                store_shared(to + j * T::ROW_STRIDE,
                    row_factors<TYPE>(scale_words[j / A_WORD] >> j % A_WORD * (32 / A_WORD), block));
            }
        }
        const uint32_t to = pending + T::COLUMN_FACTORS_AT + own % QUAD * T::COLUMN_STRIDE + own / QUAD * 8;
#pragma unroll
        for (uint32_t i = 0; i < META_TIMES; i++) {
            if (T::COLS * QUAD >= COPIERS || own < T::COLS * QUAD)
                store_shared(to + i * COPIERS / QUAD * 8, column_factors(sums[i]));
        }
        tell_full(pending);
        pending = 0;
    }

    template <int TYPE>
    __device__ __forceinline__ void start_codes(
        uint32_t stage, uint32_t quad, uint32_t slice_groups, uint32_t groups) const {
        constexpr uint32_t STRIDE = row_stride(TYPE);
        if (own % QUAD < groups) {
            const uint32_t to = stage + T::ROWS_AT + own / QUAD * STRIDE + own % QUAD * 16;
#pragma unroll
            for (uint32_t i = 0; i < ROW_TIMES; i++) {
                copy_16<0>(to + i * ROW_STEP * STRIDE, rows[i]);
                if constexpr (code_bytes(TYPE) == 32)
                    copy_16<0>(to + i * ROW_STEP * STRIDE + 16 * QUAD, rows[i] + 16 * slice_groups);
            }
        }
        if (high_bytes(TYPE) > 0 && (T::ROWS == COPIERS || own < T::ROWS)) {
            const uint32_t to = stage + T::ROWS_AT + own * STRIDE + 16 * QUAD;
            if constexpr (TYPE == Q5_K) copy_16<0>(to, row + 16 * (slice_groups + quad));
            if constexpr (TYPE == Q6_K)
                copy_16<0>(to, row + 16 * (slice_groups + 2 * quad)),
                    copy_16<16>(to, row + 16 * (slice_groups + 2 * quad));
        }
        if (own % (2 * QUAD) >= 2 * groups) return;
        const uint32_t to = stage + 16 + own / (2 * QUAD) * T::CODE_STRIDE + own % (2 * QUAD) * 16;
#pragma unroll
        for (uint32_t i = 0; i < COLUMN_TIMES; i++) copy_16<0>(to + i * COLUMN_STEP * T::CODE_STRIDE, columns[i]);
    }

    // All stages of a tile.
    template <int TYPE>
    __device__ __forceinline__ void copy_tile(Ring &ring) {
        for (Place at{}; at.pass < T::PASSES; at.pass++) {
            const uint32_t slices = tiles.slices_of(at), quad = tiles.quad_of(at);
            for (at.slice = 0; at.slice < slices; at.slice++) {
                const uint32_t slice_groups = tiles.groups_of_slice(at),
                               groups = tiles.is_ragged() ? tiles.groups_of(at) : QUAD;
                wait_for(ring.empty(), ring.parity ^ 1);
                finish<TYPE>();
                if (groups > 0)
                    load_factors<TYPE>(quad, slice_groups, groups),
                        start_codes<TYPE>(ring.stage, quad, slice_groups, groups);
                pending = ring.stage;
                ring.advance();
                skip(bytes_of_slice(TYPE, SLICE_GROUPS), SLICE_GROUPS);
            }
            skip(16 * QUAD - (int64_t)slices * bytes_of_slice(TYPE, SLICE_GROUPS),
                (int)QUAD - (int)slices * SLICE_GROUPS),
                row -= 16 * QUAD;
        }
        finish<TYPE>();
    }
};

// What copiers do: all stages of the block's tiles.
template <class Tiles>
__device__ __forceinline__ void copy_all(const Tiles &tiles, Ring ring) {
    Copier<Tiles> copier(tiles);
    launch_then_await();
    for (uint32_t work = blockIdx.x / Tiles::T::SPLIT; work < tiles.works(); work += gridDim.x / Tiles::T::SPLIT) {
        const auto corner = tiles.coord_of(work);
        copier.find(corner);
        tiles.by_type(corner, [&](auto type) { copier.template copy_tile<decltype(type)::value>(ring); });
    }
}
