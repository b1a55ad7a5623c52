// out = x * matrix^T (+ bias) (+ out), or the gated unit of two products, for many rows of x and quantized matrices, on
// tensor cores.
//
// A block walks over tiles of weight rows times rows of x. Its warps divide the groups of a slice: a warp has R
// neighbouring ones, of all slices in order, in sums of its own, and at the end neighbours are added, then pairs of
// them, and so on. That is the order of `gemm_dp4a.cu` and `gemv_b1.cu`, where a lane stands for what is a group of
// every slice here, so all give the same bits. Where the sums of all 32 groups of a slice do not fit into registers, a
// tile takes the columns in several passes. Slices come to shared memory through a ring; the first of their weights
// start before the block waits for its producers.
#include "gemm/segments.cuh"
#include "ptx/cp_async.cuh"
#include "quant/activation.cuh"
#include "quant/mma_operands.cuh"

constexpr int WARPS = 8;
// Outputs of a unit of work: what a warp makes 8-bit blocks of.
constexpr uint32_t UNIT = 32;
// Distance of the columns of partial sums, which keeps banks apart.
constexpr int SUM_STRIDE = 36;

// MT times 16 weight rows, NT times 8 rows of x, R groups a warp.
template <int MT, int NT, int R>
struct Tile {
    static constexpr uint32_t ROWS = 16 * MT, COLS = 8 * NT, GROUPS = WARPS * R, PASSES = SLICE_GROUPS / GROUPS;
    static constexpr uint32_t CODE_STRIDE = 32 * GROUPS + 16, META_STRIDE = 8 * GROUPS + 16;
    // Columns whose partial sums of 32 rows are added at a time, and outputs of a thread.
    static constexpr int ROUND = NT < 4 ? NT : 4, OUTPUTS = MT / 2 * NT;
    // Sums that wait for other passes or for the other half of a unit, in places of their threads.
    static constexpr uint32_t KEPT = OUTPUTS * ((PASSES > 1) + (PASSES > 2) + (MT == 2));
    static constexpr uint32_t SUM_FLOATS = WARPS * 8 * ROUND * SUM_STRIDE,
                              SUM_BYTES = 4 * (SUM_FLOATS + KEPT * WARPS * WARP);
};

// Bytes of the scales of blocks, of so many groups as a stage has.
__host__ __device__ constexpr uint32_t block_bytes(uint32_t dtype, uint32_t groups) {
    return dtype == Q8_0 ? 2 * groups : dtype == Q6_K ? (groups + 8) / 16 * 4 : groups / 2;
}

// Bytes of a row's part of a stage: an odd number of 16, which keeps banks apart.
__host__ __device__ constexpr uint32_t row_stride(uint32_t dtype, uint32_t groups) {
    const GroupBytes own = bytes_of_gemm_group(dtype);
    return (((own.codes + own.high + own.scales) * groups + block_bytes(dtype, groups) + 15) / 16 | 1) * 16;
}

// A stage of a tile: where it stands in the work of the block, and its first weight row and row of x.
struct Place {
    uint32_t work, half, pass, slice;
    uint32_t segment, row, column;
};

// What of a slice belongs to a pass.
struct Piece {
    uint32_t slice_groups, first, groups;
};

template <class T>
__device__ __forceinline__ Piece piece_of(uint32_t all, uint32_t pass, uint32_t slice) {
    const uint32_t slice_groups = min((uint32_t)SLICE_GROUPS, all - slice * SLICE_GROUPS), first = pass * T::GROUPS;
    return Piece{slice_groups, first, first < slice_groups ? min(T::GROUPS, slice_groups - first) : 0};
}

// Distance of a block's scale from the 4 bytes that are copied with it.
__device__ __forceinline__ uint32_t block_skew(uint32_t dtype, uint32_t first) {
    return dtype == Q6_K ? first / 8 % 2 * 2 : 0;
}

// What the parts of a launch have in common.
struct Sizes {
    uint32_t batch, columns, works, across, halves, slices, all;
    uint32_t a_bytes, stage_bytes;
};

template <class T>
struct Tiles {
    const TensorArgs &args;
    const Sizes sizes;

    __device__ __forceinline__ Tiles(const TensorArgs &args, const Shape &shape) : args(args), sizes(measure(shape)) {}

    __device__ __forceinline__ Sizes measure(const Shape &shape) const {
        Sizes s{};
        s.batch = args.on_outputs ? shape.outputs : shape.rows;
        // The few rows of a small batch take no more room than they need.
        s.columns = T::COLS == 8 ? min(s.batch, T::COLS) : T::COLS;
        s.all = args.cols / 32, s.slices = (s.all + SLICE_GROUPS - 1) / SLICE_GROUPS;
        s.halves = is_gated() && T::ROWS == UNIT ? 2 : 1;
        uint32_t units = 0;
        for (uint32_t i = 0; i < args.count; i++) {
            units += units_of(i);
            s.a_bytes = max(s.a_bytes, T::ROWS * row_stride(args.segments[i].matrix.dtype, T::GROUPS));
        }
        if (is_gated()) units = args.segments[0].matrix.rows / UNIT;
        s.across = (s.batch + T::COLS - 1) / T::COLS, s.works = units * s.across;
        s.stage_bytes = (s.a_bytes + s.columns * (T::CODE_STRIDE + T::META_STRIDE) + 15) / 16 * 16;
        return s;
    }

    __device__ __forceinline__ bool is_gated() const { return args.gated.x != nullptr; }
    __device__ __forceinline__ uint32_t units_of(uint32_t segment) const {
        return (args.segments[segment].matrix.rows + T::ROWS - 1) / T::ROWS;
    }

    // A gated unit has as many rows of the second segment.
    __device__ __forceinline__ void locate(Place &at) const {
        uint32_t unit = at.work / sizes.across;
        at.column = (at.work - unit * sizes.across) * T::COLS, at.segment = 0;
        if (is_gated()) {
            at.row = unit * UNIT + at.half * T::ROWS / 2;
            return;
        }
        while (at.segment + 1 < args.count && unit >= units_of(at.segment)) unit -= units_of(at.segment++);
        at.row = unit * T::ROWS;
    }

    __device__ __forceinline__ Place first() const {
        Place at{blockIdx.x};
        locate(at);
        return at;
    }

    __device__ __forceinline__ void advance(Place &at) const {
        if (++at.slice < sizes.slices) return;
        at.slice = 0;
        if (++at.pass < T::PASSES) return;
        at.pass = 0;
        if (++at.half == sizes.halves) at.half = 0, at.work += gridDim.x;
        locate(at);
    }

    // Copies the weights of a stage, several threads a row; the row then stands as a slice of GROUPS groups.
    __device__ __forceinline__ void start_weights(const Place &at, uint8_t *stage) const {
        constexpr uint32_t THREADS = T::GROUPS, AT_ONCE = WARPS * WARP / THREADS, TIMES = T::ROWS / AT_ONCE;
        const Matrix &m = args.segments[at.segment].matrix;
        const uint32_t own = threadIdx.x / THREADS, index = threadIdx.x % THREADS, row_bytes = m.row_bytes,
                       dtype = m.dtype;
        const uint32_t stride = row_stride(dtype, T::GROUPS), to = shared_address(stage) + own * stride + 16 * index;
        const size_t skipped = (size_t)at.row * row_bytes + at.slice * m.slice_bytes;
        const uint8_t *first = m.data + skipped, *second = is_gated() ? args.segments[1].matrix.data + skipped : first;
        const uint32_t shift = is_gated() ? T::ROWS / 2 : 0, last = m.rows - 1 - at.row;
        // Unrolled, with what to copy of a row at `to` from `from`.
        const auto each = [&](auto copy) {
#pragma unroll
            for (uint32_t i = 0; i < TIMES; i++) {
                const bool upper = i >= TIMES / 2;
                const uint32_t row = min(own + i * AT_ONCE - (upper ? shift : 0), last);
                copy(to + i * AT_ONCE * stride, (upper ? second : first) + (row * row_bytes + 16 * index));
            }
        };
        const Piece piece = piece_of<T>(sizes.all, at.pass, at.slice);
        if (T::PASSES == 1 && piece.groups == SLICE_GROUPS) {
            const uint32_t chunks = m.slice_bytes / 16;
            return each([&](uint32_t to, const uint8_t *from) {
                copy_16<0>(to, from);
                if (index + 32 < chunks) copy_16<512>(to, from);
                if (index + 64 < chunks) copy_16<1024>(to, from);
            });
        }
        if (index >= piece.groups) return;
        // Planes: begin in the slice and in the stage, and bytes a group.
        const GroupBytes group = bytes_of_gemm_group(dtype);
        const uint32_t codes = group.codes, high = group.high, scale = group.scales, planes = codes + high + scale;
        const uint32_t from_high = codes * piece.slice_groups + high * piece.first, to_high = codes * T::GROUPS;
        const uint32_t from_scale = (codes + high) * piece.slice_groups + scale * piece.first,
                       to_scale = (codes + high) * T::GROUPS;
        const uint32_t from_block = planes * piece.slice_groups, to_block = planes * T::GROUPS;
        const bool has_high = 16 * index < high * piece.groups, has_scale = 16 * index < scale * piece.groups;
        if (dtype == Q8_0) {
            return each([&](uint32_t to, const uint8_t *from) {
                copy_16<0>(to, from + 16 * piece.first);
                copy_16<0>(to + 16 * T::GROUPS, from + 16 * (piece.slice_groups + piece.first));
                if (8 * index < piece.groups) copy_16<0>(to + to_block, from + from_block + 2 * piece.first);
            });
        }
        const uint32_t block = piece.first / 8 * (dtype == Q6_K ? 2 : 4) - block_skew(dtype, piece.first);
        const bool has_block = 4 * index < block_bytes(dtype, piece.groups);
        each([&](uint32_t to, const uint8_t *from) {
            copy_16<0>(to, from + 16 * piece.first);
            if (has_high) copy_16<0>(to + to_high, from + from_high);
            if (has_scale) copy_16<0>(to + to_scale, from + from_scale);
            if (has_block) copy_4(to + to_block - 12 * index, from + from_block + block - 12 * index);
        });
    }

    __device__ __forceinline__ void start_columns(const Place &at, uint8_t *stage) const {
        constexpr uint32_t CHUNKS = 2 * T::GROUPS, CODE_STEP = WARPS * WARP / CHUNKS,
                           META_STEP = WARPS * WARP / T::GROUPS;
        const Piece piece = piece_of<T>(sizes.all, at.pass, at.slice);
        const uint32_t count = min(sizes.batch - at.column, T::COLS);
        const size_t group = (size_t)at.column * sizes.all + at.slice * SLICE_GROUPS + piece.first;
        const uint32_t codes = shared_address(stage) + sizes.a_bytes, meta = codes + sizes.columns * T::CODE_STRIDE;
        const uint32_t column = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, other = threadIdx.x / T::GROUPS,
                       index = threadIdx.x % T::GROUPS;
        const uint8_t *q = reinterpret_cast<const uint8_t *>(args.x.q) + group * 32,
                      *from = reinterpret_cast<const uint8_t *>(args.x.meta + group);
        const uint32_t code_at = column * args.cols + chunk * 16, meta_at = other * args.cols / 4 + index * 8;
        const uint32_t to_code = codes + column * T::CODE_STRIDE + chunk * 16,
                       to_meta = meta + other * T::META_STRIDE + index * 8;
        if (chunk < 2 * piece.groups) {
#pragma unroll
            for (uint32_t i = 0; i < T::COLS / CODE_STEP; i++) {
                if (column + i * CODE_STEP < count)
                    copy_16<0>(to_code + i * CODE_STEP * T::CODE_STRIDE, q + (code_at + i * CODE_STEP * args.cols));
            }
        }
        if (index < piece.groups) {
#pragma unroll
            for (uint32_t i = 0; i < T::COLS / META_STEP; i++) {
                if (other + i * META_STEP < count)
                    copy_8(
                        to_meta + i * META_STEP * T::META_STRIDE, from + (meta_at + i * META_STEP * (args.cols / 4)));
            }
        }
    }
};

// Scale of the 32 activations of a group, and their sum.
__device__ __forceinline__ ColumnFactors column_factors(int scale, int sums) {
    return ColumnFactors{
        __int_as_float(scale), __fsub_rn(__int_as_float(__dp2a_lo(sums, 0x0101, INTEGER_BITS)), INTEGER_BASE)};
}

// Scale pairs of R groups.
template <int R>
struct Pairs {
    uint32_t words[(R + 1) / 2];
    __device__ __forceinline__ explicit Pairs(const uint8_t *at) {
        if constexpr (R == 1) words[0] = read_at<uint16_t>(at, 0);
        if constexpr (R == 2) words[0] = read_at<uint32_t>(at, 0);
        if constexpr (R == 4) {
            const uint2 both = read_at<uint2>(at, 0);
            words[0] = both.x, words[1] = both.y;
        }
    }
    __device__ __forceinline__ uint32_t of(int r) const { return words[r / 2] >> r % 2 * 16; }
};

// Adds the products of the warp's groups in a stage, which has so many.
template <int TYPE, int MT, int NT, int R>
__device__ __forceinline__ void add_stage(const Tiles<Tile<MT, NT, R>> &tiles, uint32_t groups, uint32_t skew,
    const uint8_t *stage, uint32_t warp, float (&sum)[R][MT][NT][4]) {
    using T = Tile<MT, NT, R>;
    constexpr uint32_t STRIDE = row_stride(TYPE, T::GROUPS), SCALES = (code_bytes(TYPE) + high_bytes(TYPE)) * T::GROUPS;
    constexpr uint32_t BLOCKS = SCALES + scale_bytes(TYPE) * T::GROUPS, BLOCK = TYPE == Q6_K ? 2 : 4;
    if (warp * R >= groups) return;
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, last = tiles.sizes.columns - 1;
    const uint8_t *codes = stage + tiles.sizes.a_bytes, *meta = codes + tiles.sizes.columns * T::CODE_STRIDE,
                  *row = stage + g * STRIDE;
    const uint32_t column = T::COLS == 8 ? min(lane % 8, last) : lane % 8,
                   even = T::COLS == 8 ? min(2 * t, last) : 2 * t;
    const uint32_t odd = T::COLS == 8 ? min(2 * t + 1, last) : 2 * t + 1;
    // Lanes of the upper half load the next eight columns, where there are some.
    const uint32_t from = (uint32_t)__cvta_generic_to_shared(codes) +
        (column + (NT > 1 ? lane / 16 * 8 : 0)) * T::CODE_STRIDE + lane / 8 % 2 * 16;
    BlockFactors shared[MT][2];
    if constexpr (TYPE != Q8_0) {
        const uint8_t *block = row + BLOCKS + warp * R / 8 * BLOCK + skew;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) shared[i / 2][i % 2] = load_block<TYPE>(block + 8 * i * STRIDE);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t index = warp * R + r;
        if (r > 0 && index >= groups) return;
        uint32_t a[MT / 2][2][4];
        RowFactors rows[MT][2];
#pragma unroll
        for (int i = 0; i < MT / 2; i++) load_fragments<TYPE, STRIDE, T::GROUPS>(a[i], stage + 32 * i * STRIDE, index);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const uint8_t *at = row + 8 * i * STRIDE;
            if constexpr (TYPE == Q8_0) rows[i / 2][i % 2] = plain_factors(at + BLOCKS + 2 * index);
            else
                rows[i / 2][i % 2] =
                    load_factors<TYPE>(shared[i / 2][i % 2], Pairs<R>(at + SCALES + 2 * warp * R).of(r));
        }
        uint32_t b[4];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            // Keeps the loads of later columns from taking registers that the sums need.
            if (MT * NT * R >= 32 && (MT > 2 || n % 2 == 0)) __syncwarp();
            if (n % 2 == 0) load_matrices(b, from + n * 8 * T::CODE_STRIDE + index * 32);
            const uint32_t (&own)[2] = *reinterpret_cast<const uint32_t (*)[2]>(b + n % 2 * 2);
            const int2 x = *reinterpret_cast<const int2 *>(meta + (8 * n + even) * T::META_STRIDE + index * 8);
            const int2 y = *reinterpret_cast<const int2 *>(meta + (8 * n + odd) * T::META_STRIDE + index * 8);
            const ColumnFactors columns[2] = {column_factors(x.x, x.y), column_factors(y.x, y.y)};
#pragma unroll
            for (int i = 0; i < MT; i++) add_tile<TYPE>(sum[r][i][n], a[i / 2][i % 2], rows[i], own, columns);
        }
    }
}

__device__ __forceinline__ float add_tree(const float (&v)[4]) {
    return __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3]));
}

template <int MT, int NT, int R>
__device__ __forceinline__ float own_sum(const float (&sum)[R][MT][NT][4], int m, int n, int i) {
    if constexpr (R == 1) return sum[0][m][n][i];
    if constexpr (R == 2) return __fadd_rn(sum[0][m][n][i], sum[1][m][n][i]);
    if constexpr (R == 4) return add_tree({sum[0][m][n][i], sum[1][m][n][i], sum[2][m][n][i], sum[3][m][n][i]});
}

// Adds the warps' sums; then lane `row` of warp `column` has those of every eighth column from its own on.
template <int MT, int NT, int R>
__device__ __forceinline__ void add_warps(const float (&sum)[R][MT][NT][4], float *parts, float (&total)[MT / 2][NT]) {
    constexpr int ROUND = Tile<MT, NT, R>::ROUND;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float *to = parts + (warp * 8 * ROUND + 2 * t) * SUM_STRIDE + g;
#pragma unroll
    for (int round = 0; round < MT / 2 * NT / ROUND; round++) {
        const int half = round * ROUND / NT, first = round * ROUND % NT;
        if (round > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < 8 * ROUND; i++) {
            const int n = i / 8, row = i % 8 / 2, column = i % 2;
            to[(8 * n + column) * SUM_STRIDE + 8 * row] =
                own_sum<MT, NT, R>(sum, 2 * half + row / 2, first + n, row % 2 * 2 + column);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < ROUND; n++) {
            float v[8];
#pragma unroll
            for (int w = 0; w < WARPS; w++) v[w] = parts[((w * ROUND + n) * 8 + warp) * SUM_STRIDE + lane];
            total[half][first + n] = __fadd_rn(add_tree({v[0], v[1], v[2], v[3]}), add_tree({v[4], v[5], v[6], v[7]}));
        }
    }
}

// Adds the sums of passes: neighbours, then pairs. Those of earlier passes wait in `kept`; after the last pass `total`
// has all.
template <int H, int NT>
__device__ __forceinline__ void join_passes(uint32_t pass, uint32_t last, float *kept, float (&total)[H][NT]) {
#pragma unroll
    for (int i = 0; i < H * NT; i++) {
        float &v = total[i / NT][i % NT], &first = kept[i * WARPS * WARP];
        float &second = kept[(i + (last > 1 ? H * NT : 0)) * WARPS * WARP];
        if (pass == 3) v = __fadd_rn(second, v);
        if (pass % 2 == 1) v = __fadd_rn(first, v);
        if (pass == last) continue;
        if (pass == 2) second = v;
        else first = v;
    }
}

// Outputs of weight rows that stand as they are.
template <int MT, int NT, int R>
__device__ __forceinline__ void put_sums(
    const Tiles<Tile<MT, NT, R>> &tiles, const Place &at, const float (&sum)[MT / 2][NT]) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const TensorArgs &args = tiles.args;
    const Segment &segment = args.segments[at.segment];
    const uint32_t rows = segment.matrix.rows;
#pragma unroll
    for (int i = 0; i < MT / 2 * NT; i++) {
        const uint32_t row = at.row + i / NT * WARP + lane, column = at.column + i % NT * 8 + warp;
        if (row >= rows || column >= tiles.sizes.batch) continue;
        float v = sum[i / NT][i % NT];
        if (args.x.factors != nullptr) v = __fmul_rn(v, args.x.factors[column]);
        float *out = segment.out + (size_t)column * rows + row;
        if (segment.bias != nullptr) v = __fadd_rn(v, segment.bias[row]);
        *out = segment.adds ? __fmaf_rn(segment.adds, v, *out) : v;
    }
}

// Outputs of gated units. Where a tile has 16 of each kind of row, those of its first half wait for the second.
template <int MT, int NT, int R>
__device__ __forceinline__ void put_gated(
    const Tiles<Tile<MT, NT, R>> &tiles, const Place &at, const float (&sum)[MT / 2][NT], float *kept) {
    using T = Tile<MT, NT, R>;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const TensorArgs &args = tiles.args;
    const uint32_t row = at.row - at.half * T::ROWS / 2 + lane;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t column = at.column + n * 8 + warp;
        const float factor = args.x.factors != nullptr && column < tiles.sizes.batch ? args.x.factors[column] : 1.0f;
        float v = __fmul_rn(sum[0][n], factor);
        if constexpr (MT == 2) {
            v = gated(args.unit, v, __shfl_down_sync(ALL_LANES, v, 16));
            if (at.half == 0) {
                kept[n * WARPS * WARP] = v;
                continue;
            }
            const float upper = __shfl_up_sync(ALL_LANES, v, 16);
            v = lane < 16 ? kept[n * WARPS * WARP] : upper;
        } else {
            v = gated(args.unit, v, __fmul_rn(sum[1][n], factor));
        }
        if (column < tiles.sizes.batch) emit_blocks(args.gated, column, row, args.segments[0].matrix.rows, v);
    }
}

// Waits for the oldest of `stages` stages but one, which are on their way.
__device__ __forceinline__ void wait_stage(uint32_t stages) {
    switch (stages) {
        case 2: wait_copies<0>(); break;
        case 3: wait_copies<1>(); break;
        case 4: wait_copies<2>(); break;
        case 5: wait_copies<3>(); break;
        default: wait_copies<4>(); break;
    }
}

constexpr uint32_t MOST_STAGES = 6;

template <int MT, int NT, int R>
__device__ __forceinline__ void multiply(const TensorArgs &args, const Shape &shape) {
    using T = Tile<MT, NT, R>;
    extern __shared__ __align__(128) uint8_t shared[];
    const Tiles<T> tiles(args, shape);
    uint32_t dynamic_bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic_bytes));
    float *parts = reinterpret_cast<float *>(shared), *kept = parts + T::SUM_FLOATS + threadIdx.x;
    float *kept_half = kept + (T::KEPT - T::OUTPUTS) * WARPS * WARP;
    uint8_t *ring = shared + T::SUM_BYTES;
    const uint32_t stages = min(MOST_STAGES, (dynamic_bytes - T::SUM_BYTES) / tiles.sizes.stage_bytes),
                   end = stages * tiles.sizes.stage_bytes;
    Place ahead = tiles.first();
    for (uint32_t i = 0; i + 1 < stages; i++, tiles.advance(ahead)) {
        if (ahead.work < tiles.sizes.works) tiles.start_weights(ahead, ring + i * tiles.sizes.stage_bytes);
        commit_copies();
    }
    launch_then_await();
    ahead = tiles.first();
    for (uint32_t i = 0; i + 1 < stages; i++, tiles.advance(ahead)) {
        if (ahead.work < tiles.sizes.works) tiles.start_columns(ahead, ring + i * tiles.sizes.stage_bytes);
        commit_copies();
    }
    uint32_t taken = 0, filled = end - tiles.sizes.stage_bytes;
    const auto after = [&](uint32_t place) {
        return place + tiles.sizes.stage_bytes == end ? 0 : place + tiles.sizes.stage_bytes;
    };
    const uint32_t warp = warp_number();
    Place at = tiles.first();
    while (at.work < tiles.sizes.works) {
        const Matrix &m = args.segments[at.segment].matrix;
        float sum[R][MT][NT][4] = {};
        for (at.slice = 0; at.slice < tiles.sizes.slices; at.slice++) {
            wait_stage(stages);
            __syncthreads();
            if (ahead.work < tiles.sizes.works)
                tiles.start_weights(ahead, ring + filled), tiles.start_columns(ahead, ring + filled);
            commit_copies();
            tiles.advance(ahead), filled = after(filled);
            const Piece piece = piece_of<T>(tiles.sizes.all, at.pass, at.slice);
            const uint32_t skew = T::PASSES == 1 ? 0 : block_skew(m.dtype, piece.first);
            switch (m.dtype) {
                case Q8_0: add_stage<Q8_0, MT, NT, R>(tiles, piece.groups, skew, ring + taken, warp, sum); break;
                case Q4_K: add_stage<Q4_K, MT, NT, R>(tiles, piece.groups, skew, ring + taken, warp, sum); break;
                case Q5_K: add_stage<Q5_K, MT, NT, R>(tiles, piece.groups, skew, ring + taken, warp, sum); break;
                default: add_stage<Q6_K, MT, NT, R>(tiles, piece.groups, skew, ring + taken, warp, sum); break;
            }
            taken = after(taken);
        }
        float total[MT / 2][NT];
        add_warps<MT, NT, R>(sum, parts, total);
        join_passes(at.pass, T::PASSES - 1, kept, total);
        if (at.pass + 1 == T::PASSES) {
            if (tiles.is_gated()) put_gated<MT, NT, R>(tiles, at, total, kept_half);
            else put_sums<MT, NT, R>(tiles, at, total);
        }
        at.slice--, tiles.advance(at);
    }
}

// The widest tiles need every register, and the code for compute capability 9.0 alone does with them; others walk over
// more tiles, which is right for any number of blocks and needs less shared memory.
template <int ROWS, int COLUMNS, int GROUPS>
__device__ __forceinline__ void multiply_tiles(const TensorArgs &args, const Shape &shape) {
#if __CUDA_ARCH__ == 900
    multiply<ROWS / 16, COLUMNS / 8, GROUPS / 8>(args, shape);
#else
    if constexpr (COLUMNS < 64) multiply<ROWS / 16, COLUMNS / 8, GROUPS / 8>(args, shape);
    else multiply<2, 2, 4>(args, shape);
#endif
}

#define GEMM_I8(family, file, name, ROWS, COLUMNS, GROUPS)                          \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, COLUMNS == 8 ? 2 : 1) \
        name(const __grid_constant__ TensorArgs args, Shape shape) {                \
        multiply_tiles<ROWS, COLUMNS, GROUPS>(args, shape);                         \
    }
#include "kernels.def"
