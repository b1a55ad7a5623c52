// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, for up to eight rows of x and quantized
// matrices, on tensor cores.
//
// A block keeps all of x in shared memory, and its teams of eight warps walk over tiles of 16 weight rows. Each team
// has a ring of slices that a warp of its own fills from before the block waits for its producers.
#include "gemm/i8_tile.cuh"

// The host does not choose this kernel where it was compiled for less than compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Warps of a team, teams of a block, and their threads; each team has one warp more, which fills its ring.
constexpr uint32_t TEAMS = 2, TEAM = WARPS * WARP, CONSUMERS = TEAMS * WARPS;
// Outputs of a unit of work: a tile, or where they are gated, as many as make an 8-bit block, of two tiles of each
// matrix.
constexpr uint32_t UNIT = 32;
// Slices of a stage, and stages of a ring.
constexpr uint32_t MOST_SLICES = 4, MOST_STAGES = 8, ENOUGH_STAGES = 2;

// Where everything lies in shared memory, as offsets.
struct Layout {
    RowsOfX x;
    uint32_t slices, groups, units, tiles;  // tiles of a unit
    uint32_t rings, stage_bytes, stages, stage_slices;
};

__device__ __forceinline__ bool is_gated(const TensorArgs &args) { return args.gated.x != nullptr; }

// Distance of weight rows in a stage of so many slices: an odd number of 16 bytes, which keeps banks apart.
__device__ __forceinline__ uint32_t row_stride(uint32_t slice_bytes, uint32_t slices) {
    return (slices * slice_bytes / 16 | 1) * 16;
}

__device__ __forceinline__ Layout lay_out(const TensorArgs &args, const Shape &shape) {
    Layout l{};
    l.x = RowsOfX(args, shape), l.rings = l.x.end;
    l.groups = args.cols / 32, l.slices = (l.groups + SLICE_GROUPS - 1) / SLICE_GROUPS;
    l.tiles = is_gated(args) ? 2 * UNIT / TILE_ROWS : 1;
    for (uint32_t i = 0; i < args.count; i++) l.units += tiles_of(args.segments[i]);
    if (is_gated(args)) l.units = args.segments[0].matrix.rows / UNIT;
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    // Fewer and longer copies, where that leaves stages enough.
    for (l.stage_slices = MOST_SLICES; l.stage_slices > 0; l.stage_slices--) {
        l.stage_bytes = 0;
        for (uint32_t i = 0; i < args.count; i++) {
            l.stage_bytes =
                max(l.stage_bytes, TILE_ROWS * row_stride(args.segments[i].matrix.slice_bytes, l.stage_slices));
        }
        l.stages = min(MOST_STAGES, (bytes - l.rings) / (TEAMS * l.stage_bytes));
        if (l.stages >= ENOUGH_STAGES || l.stage_slices == 1) break;
    }
    return l;
}

// Gated units take 16 rows of one matrix and 16 of the other in turn.
__device__ __forceinline__ Tile tile_of_unit(const TensorArgs &args, uint32_t unit, uint32_t tile) {
    return is_gated(args) ? Tile{tile % 2, unit * UNIT + tile / 2 * TILE_ROWS} : tile_of(args, unit);
}

// A place in a ring, and the parity of its barriers.
struct PipelineState {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance(uint32_t stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// Fills a team's ring with the slices of all its tiles.
__device__ void produce(const TensorArgs &args, const Layout &l, uint32_t ring, uint32_t full, uint32_t empty,
    uint32_t first, uint32_t step) {
    PipelineState turn;
    for (uint32_t unit = first; unit < l.units; unit += step) {
        for (uint32_t i = 0; i < l.tiles; i++) {
            const Tile tile = tile_of_unit(args, unit, i);
            const Matrix m = args.segments[tile.segment].matrix;
            const uint32_t stride = row_stride(m.slice_bytes, l.stage_slices), most = l.stage_slices * m.slice_bytes;
            const uint8_t *first = m.data + (size_t)tile.row * m.row_bytes;
            for (uint32_t copied = 0; copied < m.row_bytes; copied += most) {
                wait_phase(empty + 8 * turn.stage, turn.parity ^ 1);
                copy_rows<TILE_ROWS>(ring + turn.stage * l.stage_bytes, stride, min(most, m.row_bytes - copied),
                    full + 8 * turn.stage, first + copied, m.row_bytes, m.rows - 1 - tile.row);
                turn.advance(l.stages);
            }
        }
    }
}

// Brings x to shared memory: codes as they are, and of each group its scale and its sum as floats.
__device__ __forceinline__ void fetch_columns(const TensorArgs &args, const Layout &l, uint8_t *shared) {
    constexpr uint32_t THREADS = CONSUMERS * WARP;
    const uint32_t chunks = args.cols / 16;
    for (uint32_t column = 0; column < l.x.batch; column++) {
        const int8_t *q = args.x.q + (size_t)column * args.cols;
        const uint32_t to = shared_address(shared) + column * l.x.code_stride;
        for (uint32_t i = threadIdx.x; i < chunks; i += THREADS) copy_16<0>(to + 16 * i, q + 16 * i);
    }
    commit_copies();
    const uint32_t count = l.x.batch * l.groups;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint32_t column = i / l.groups, group = i - column * l.groups;
        const Meta meta = args.x.meta[i];
        float2 *to = reinterpret_cast<float2 *>(shared + l.x.factors + column * l.x.factor_stride);
        to[group] = make_float2(meta.scale, (float)(meta.sums.x + meta.sums.y));
    }
    wait_copies<0>();
}

// Adds the products of a tile, whose stages come one after the other.
template <int TYPE>
__device__ __forceinline__ void add_tile_of(const Layout &l, uint32_t slice_bytes, const uint8_t *shared,
    const uint8_t *ring, uint32_t full, uint32_t empty, PipelineState &turn, float (&sum)[GROUPS][4]) {
    const uint32_t index = threadIdx.x / WARP % WARPS * GROUPS, stride = row_stride(slice_bytes, l.stage_slices);
    const uint32_t stages = l.stages, stage_bytes = l.stage_bytes, slices = l.stage_slices;
    Columns columns(l.x, shared, index);
    for (uint32_t left = l.groups; left > 0;) {
        wait_phase(full + 8 * turn.stage, turn.parity);
        const uint8_t *stage = ring + turn.stage * stage_bytes;
        for (uint32_t i = 0; i < slices && left > 0; i++, stage += slice_bytes, columns.advance()) {
            const uint32_t groups = min((uint32_t)SLICE_GROUPS, left);
            if (index < groups) add_slice<TYPE>(Slice<TYPE>(stage, stride, groups, index), columns, sum);
            left -= groups;
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0) arrive(empty + 8 * turn.stage);
        turn.advance(stages);
    }
}

// Writes rows `row` and `row + 16` of a column's gated unit, by sixteen lanes with a row each, with their 8-bit block.
// The same bits as `emit_blocks`.
__device__ __forceinline__ void put_gated(
    const TensorArgs &args, uint32_t batch, uint32_t column, uint32_t unit, uint32_t row, float low, float high) {
    const Activation &out = args.gated;
    const uint32_t rows = args.segments[0].matrix.rows;
    const size_t first = (size_t)column * rows + unit * UNIT;
    uint32_t largest = max(magnitude(low), magnitude(high));
#pragma unroll
    for (int step = 1; step < 16; step *= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    const BlockScale block = block_scale(largest);
    const int8_t lower = (int8_t)(code_of(block, low) & block.bits),
                 upper = (int8_t)(code_of(block, high) & block.bits);
    int sums[2] = {lower, upper};
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        sums[0] += __shfl_xor_sync(ALL_LANES, sums[0], step), sums[1] += __shfl_xor_sync(ALL_LANES, sums[1], step);
    }
    if (column >= batch) return;
    out.x[first + row] = low, out.x[first + 16 + row] = high;
    if (out.q == nullptr) return;
    out.q[first + row] = lower, out.q[first + 16 + row] = upper;
    if (row == 0) out.meta[first / UNIT] = Meta{block.scale, make_short2((short)sums[0], (short)sums[1])};
}

// What threads keep of their outputs while the next tile is added: the residual, or their parts of a gated unit.
struct Kept {
    float first[TILE_ROWS * TILE_COLUMNS], second[TILE_ROWS * TILE_COLUMNS];
};

// The outputs of a thread, one of each tile.
struct Output {
    float &first, &second;

    __device__ __forceinline__ explicit Output(Kept &kept)
        : first(kept.first[threadIdx.x % TEAM]), second(kept.second[threadIdx.x % TEAM]) {}

    __device__ __forceinline__ static uint32_t row() { return threadIdx.x % TILE_ROWS; }
    __device__ __forceinline__ static uint32_t column() { return threadIdx.x % TEAM / TILE_ROWS; }

    // What is added to it, which is read before it is needed.
    __device__ __forceinline__ void begin(const TensorArgs &args, const Tile &tile, uint32_t batch) {
        const Segment &segment = args.segments[tile.segment];
        const uint32_t rows = segment.matrix.rows, at = tile.row + row();
        if (!segment.adds || is_gated(args) || column() >= batch || at >= rows) return;
        first = segment.out[(size_t)column() * rows + at];
    }

    __device__ __forceinline__ void end(const TensorArgs &args, const Tile &tile, uint32_t batch, float v) const {
        const Segment &segment = args.segments[tile.segment];
        const uint32_t rows = segment.matrix.rows, at = tile.row + row();
        if (column() >= batch || at >= rows) return;
        if (segment.bias != nullptr) v = __fadd_rn(v, segment.bias[at]);
        segment.out[(size_t)column() * rows + at] = segment.adds ? __fmaf_rn(segment.adds, v, first) : v;
    }

    __device__ __forceinline__ void end_gated(
        const TensorArgs &args, uint32_t unit, uint32_t tile, uint32_t batch, float v) {
        if (tile % 2 == 0) {
            first = v;
            return;
        }
        v = gated(args.unit, first, v);
        if (tile == 1) second = v;
        else put_gated(args, batch, column(), unit, row(), second, v);
    }
};

__device__ __forceinline__ void sync_team(uint32_t team) {
    if (team == 0) sync_threads<2, TEAM>();
    else sync_threads<3, TEAM>();
}

// Adds the products of the team's next tile; then all of its sums stand in `parts`.
__device__ __forceinline__ void add_all(const Layout &l, const Matrix &m, const uint8_t *shared, const uint8_t *ring,
    uint32_t full, uint32_t empty, uint32_t team, float *parts, PipelineState &turn) {
    float sum[GROUPS][4] = {};
    switch (m.dtype) {
        case Q8_0: add_tile_of<Q8_0>(l, m.slice_bytes, shared, ring, full, empty, turn, sum); break;
        case Q4_K: add_tile_of<Q4_K>(l, m.slice_bytes, shared, ring, full, empty, turn, sum); break;
        case Q5_K: add_tile_of<Q5_K>(l, m.slice_bytes, shared, ring, full, empty, turn, sum); break;
        default: add_tile_of<Q6_K>(l, m.slice_bytes, shared, ring, full, empty, turn, sum); break;
    }
    // Until the sums of the tile before have been taken.
    sync_team(team);
    put_parts(sum, parts);
    sync_team(team);
}

extern "C" __global__ void __launch_bounds__(TEAMS *(TEAM + WARP), 1)
    gemm_i8_resident(const __grid_constant__ TensorArgs args, Shape shape) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[TEAMS][2 * MOST_STAGES];
    __shared__ float parts[TEAMS][WARPS * SUMS];
    __shared__ Kept kept[TEAMS];
    __shared__ Layout l;
    if (threadIdx.x == 0) l = lay_out(args, shape);
    const uint32_t warp = warp_number(), team = warp < CONSUMERS ? warp / WARPS : warp - CONSUMERS;
    const uint32_t full = shared_address(barriers[team]), empty = full + 8 * MOST_STAGES;
    if (warp >= CONSUMERS && threadIdx.x % WARP == 0) {
        for (uint32_t i = 0; i < MOST_STAGES; i++) make_barrier(full + 8 * i, 1), make_barrier(empty + 8 * i, WARPS);
        publish_barriers();
    }
    __syncthreads();
    uint8_t *ring = shared + l.rings + team * l.stages * l.stage_bytes;
    const uint32_t first = team * gridDim.x + blockIdx.x, step = TEAMS * gridDim.x;
    if (warp >= CONSUMERS) return produce(args, l, shared_address(ring), full, empty, first, step);
    launch_then_await();
    fetch_columns(args, l, shared);
    sync_threads<1, CONSUMERS * WARP>();
    const bool ends = threadIdx.x % TEAM < TILE_ROWS * TILE_COLUMNS;
    PipelineState turn;
    for (uint32_t unit = first; unit < l.units; unit += step) {
        for (uint32_t i = 0; i < l.tiles; i++) {
            const Tile tile = tile_of_unit(args, unit, i);
            if (ends) Output(kept[team]).begin(args, tile, l.x.batch);
            add_all(l, args.segments[tile.segment].matrix, shared, ring, full, empty, team, parts[team], turn);
            if (!ends) continue;
            const bool is_scaled = args.x.factors != nullptr && Output::column() < l.x.batch;
            const float factor = is_scaled ? args.x.factors[Output::column()] : 1.0f;
            const float v = __fmul_rn(add_parts(parts[team], Output::row(), Output::column()), factor);
            Output output(kept[team]);
            if (is_gated(args)) output.end_gated(args, unit, i, l.x.batch, v);
            else output.end(args, tile, l.x.batch, v);
        }
    }
}

#else

extern "C" __global__ void gemm_i8_resident(const __grid_constant__ TensorArgs, Shape) {}

#endif
