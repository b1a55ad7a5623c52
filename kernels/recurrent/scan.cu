// Linear attention through a matrix for each head that decays from row to row: the gated delta rule (Yang et al.,
// "Gated Delta Networks") and selective state spaces (Dao and Gu, "Transformers are SSMs"). A block keeps 32 columns of
// one head's matrix in registers while the rows of a stretch pass by, so the sums of a prompt are those of steps. Four
// lanes share a column: lane `part` has of each 16 elements of a key those from 4 part on.
#include "ptx/cp_async.cuh"
#include "recurrent/column.cuh"

constexpr int THREADS = 128, COLUMNS = THREADS / WARP * WARP_COLUMNS;
// Buffers of rows whose queries, keys and values are in shared memory at once, and rows of one.
constexpr int STAGES = 2;
template <int KEYS>
constexpr int ROWS = KEYS <= 128 ? 16 : 8;

struct ScanArgs {
    const float *queries, *keys, *values;
    const float *decay, *strength;  // an element for each head; no strength for a state space
    const float *bias, *rate;       // likewise, for all rows
    const float *skip;              // null for none
    float *out;
    const Stretch *stretches;
    Records records;
    uint64_t
        state;  // first element in a record: for each head blocks of 16 columns, a row of the matrix after the other
    uint32_t heads, key_heads, key_dim, value_dim;
    uint32_t is_tiled;  // head h has key head h % key_heads, else h / (heads / key_heads)
    uint32_t pad;
};
static_assert(sizeof(ScanArgs) == 128, "as in args.rs");

// Elements of a key up to KEYS.
template <int KEYS>
struct Stage {
    __align__(16) float query[ROWS<KEYS>][KEYS], key[ROWS<KEYS>][KEYS], value[ROWS<KEYS>][COLUMNS];
    float kept[ROWS<KEYS>], strength[ROWS<KEYS>];
};

// What a block works on.
struct Place {
    uint32_t head, key_head, first_col, lane_col, part;

    __device__ __forceinline__ Place(const ScanArgs &args) {
        const uint32_t blocks = (args.value_dim + COLUMNS - 1) / COLUMNS, lane = threadIdx.x % WARP;
        head = blockIdx.x / blocks;
        key_head = args.is_tiled ? head % args.key_heads : head / (args.heads / args.key_heads);
        first_col = blockIdx.x % blocks * COLUMNS;
        lane_col = threadIdx.x / WARP * WARP_COLUMNS + lane % WARP_COLUMNS;
        part = lane / WARP_COLUMNS;
    }
};

// Copies `count` of WIDTH floats each from `from` on, by the block.
template <int WIDTH>
__device__ __forceinline__ void copy_floats(float *to, const float *from, uint32_t count) {
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        if constexpr (WIDTH == 4) copy_16<0>(shared_address(to + 4 * i), from + 4 * i);
        else copy_4(shared_address(to + i), from + i);
    }
}

// Begins to bring `count` rows from `row` on into a stage; all sizes are multiples of WIDTH.
template <int KEYS, int WIDTH>
__device__ __forceinline__ void fetch_rows(
    const ScanArgs &args, const Place &place, Stage<KEYS> &stage, uint32_t row, uint32_t count) {
    const uint32_t cols = min((uint32_t)COLUMNS, args.value_dim - place.first_col), step = COLUMNS / WIDTH;
    for (uint32_t i = 0; i < count; i++) {
        const size_t key = ((size_t)(row + i) * args.key_heads + place.key_head) * args.key_dim;
        copy_floats<WIDTH>(stage.query[i], args.queries + key, args.key_dim / WIDTH);
        copy_floats<WIDTH>(stage.key[i], args.keys + key, args.key_dim / WIDTH);
    }
    for (uint32_t at = threadIdx.x; at < count * step; at += THREADS) {
        const uint32_t i = at / step, col = at % step * WIDTH;
        const float *value =
            args.values + ((size_t)(row + i) * args.heads + place.head) * args.value_dim + place.first_col + col;
        if (col >= cols) continue;
        if constexpr (WIDTH == 4) copy_16<0>(shared_address(&stage.value[i][col]), value);
        else copy_4(shared_address(&stage.value[i][col]), value);
    }
    commit_copies();
}

template <int KEYS>
__device__ __forceinline__ void fetch(
    const ScanArgs &args, const Place &place, Stage<KEYS> &stage, uint32_t row, uint32_t count) {
    if ((args.key_dim | args.value_dim) % 4 == 0) fetch_rows<KEYS, 4>(args, place, stage, row, count);
    else fetch_rows<KEYS, 1>(args, place, stage, row, count);
}

// The gates of a thread's row of a stage: some lanes of each warp have one.
template <int KEYS>
struct OwnGates {
    static constexpr uint32_t EACH = ROWS<KEYS> / (THREADS / WARP);
    uint32_t row;
    float decay, strength, bias, rate;
    bool is_delta;

    __device__ __forceinline__ OwnGates(const ScanArgs &args, uint32_t head)
        : row(threadIdx.x % WARP < EACH ? threadIdx.x / WARP * EACH + threadIdx.x % WARP : UINT32_MAX), decay(0.0f),
          strength(0.0f), bias(args.bias[head]), rate(args.rate[head]), is_delta(args.strength != nullptr) {}

    // Reads that of `count` rows from `first` on, if it is one.
    __device__ __forceinline__ void load(const ScanArgs &args, uint32_t head, uint32_t first, uint32_t count) {
        if (row >= count) return;
        const size_t gate = (size_t)(first + row) * args.heads + head;
        decay = args.decay[gate];
        if (is_delta) strength = args.strength[gate];
    }

    // Leaves how much of the matrix is kept, and how much of the values enters.
    __device__ __forceinline__ void put(Stage<KEYS> &stage) const {
        if (row == UINT32_MAX) return;
        const Entering gates(decay, strength, is_delta, bias, rate);
        stage.kept[row] = gates.kept, stage.strength[row] = gates.strength;
    }
};

#define SCAN(family, file, name, keys)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ ScanArgs args, Shape) { \
        __shared__ Stage<keys> stages[STAGES];                                                                 \
        scan<keys>(args, stages);                                                                              \
    }

// A block's way through the rows of a stretch.
template <int KEYS>
struct Scan {
    const ScanArgs &args;
    const Place &place;
    const Stretch &stretch;
    uint64_t offset;  // of the lane's column in a record
    bool has_column, is_written;
    float skip;
    Column<KEYS> column;

    // Takes the next row, number `index` of the stretch and `i` of a stage.
    template <typename Key, typename Query>
    __device__ __forceinline__ void take(
        const Stage<KEYS> &stage, uint32_t i, uint32_t index, const Key &key, const Query &query) {
        if (index + 1 == stretch.count && stretch.before != NONE && has_column) {
            store_column<KEYS>(column, place.part, args.key_dim, record_at(args.records, stretch.before, offset));
        }
        const Gates gates{stage.kept[i], stage.strength[i], args.strength != nullptr, skip};
        const float v = take_row<KEYS>(key, query, stage.value[i][place.lane_col], gates, column);
        const size_t at = ((size_t)(stretch.first + index) * args.heads + place.head) * args.value_dim;
        if (is_written) args.out[at + place.first_col + place.lane_col] = v;
    }

    // Takes `rows` rows of a stage, number `start` of the stretch and on.
    __device__ __forceinline__ void take_stage(const Stage<KEYS> &stage, uint32_t rows, uint32_t start) {
#pragma unroll 1
        for (uint32_t i = 0; i < rows; i++) {
            const float4 *key = own_elements(stage.key[i], place.part),
                         *query = own_elements(stage.query[i], place.part);
            take(stage, i, start + i, [&](int j) { return key[j * PARTS]; }, [&](int j) { return query[j * PARTS]; });
        }
    }

    // The same of short keys, which are read a row ahead.
    __device__ __forceinline__ void take_stage_ahead(const Stage<KEYS> &stage, uint32_t rows, uint32_t start) {
        float4 keys[2][KEYS / BLOCK], queries[2][KEYS / BLOCK];
        const auto load = [&](int to, uint32_t i) {
            if (i >= rows) return;
            const float4 *key = own_elements(stage.key[i], place.part),
                         *query = own_elements(stage.query[i], place.part);
#pragma unroll
            for (int j = 0; j < KEYS / BLOCK; j++) keys[to][j] = key[j * PARTS], queries[to][j] = query[j * PARTS];
        };
        const auto take_loaded = [&](int from, uint32_t i) {
            take(stage, i, start + i, [&](int j) { return keys[from][j]; }, [&](int j) { return queries[from][j]; });
        };
        load(0, 0);
#pragma unroll 1
        for (uint32_t i = 0; i < rows; i += 2) {
            load(1, i + 1);
            take_loaded(0, i);
            load(0, i + 2);
            if (i + 1 < rows) take_loaded(1, i + 1);
        }
    }
};

template <int KEYS>
__device__ __forceinline__ void scan(const ScanArgs &args, Stage<KEYS> (&stages)[STAGES]) {
    launch_dependents();
    const Stretch stretch = args.stretches[blockIdx.y];
    const Place place(args);
    const uint32_t col = place.first_col + place.lane_col, count = stretch.count;
    Scan<KEYS> own{args, place, stretch, column_at(args.state, place.head, args.value_dim, args.key_dim, col),
        col < (args.value_dim + BLOCK - 1) / BLOCK * BLOCK, col < args.value_dim && place.part == 0,
        args.skip == nullptr ? 0.0f : args.skip[place.head]};
    // What earlier steps left is there before the wait.
    const bool has_state = own.has_column && count > 0 && stretch.from != NONE;
    const float *from = has_state ? record_at(args.records, stretch.from, own.offset) : nullptr;
    load_column<KEYS>(from, place.part, args.key_dim, own.column);
    for (int i = threadIdx.x; i < (int)sizeof(stages) / 4; i += THREADS) reinterpret_cast<float *>(stages)[i] = 0.0f;
    OwnGates<KEYS> gates(args, place.head);
    const auto rows_from = [&](uint32_t start) { return min((uint32_t)ROWS<KEYS>, count - min(start, count)); };
    __syncthreads();
    await_dependencies();
    fetch<KEYS>(args, place, stages[0], stretch.first, rows_from(0));
    gates.load(args, place.head, stretch.first, rows_from(0));
    gates.put(stages[0]);
    for (uint32_t start = 0, stage = 0; start < count; start += ROWS<KEYS>, stage ^= 1) {
        const uint32_t next = start + ROWS<KEYS>;
        fetch<KEYS>(args, place, stages[stage ^ 1], stretch.first + next, rows_from(next));
        gates.load(args, place.head, stretch.first + next, rows_from(next));
        wait_copies<1>();
        __syncthreads();
        if constexpr (KEYS <= 128) own.take_stage_ahead(stages[stage], rows_from(start), start);
        else own.take_stage(stages[stage], rows_from(start), start);
        gates.put(stages[stage ^ 1]);
        __syncthreads();
    }
    if (own.has_column && count > 0) {
        store_column<KEYS>(own.column, place.part, args.key_dim, record_at(args.records, stretch.to, own.offset));
    }
}

#include "kernels.def"
