// Linear attention through a matrix for each head that decays from row to row: the gated delta rule (Yang et al.,
// "Gated Delta Networks") and selective state spaces (Dao and Gu, "Transformers are SSMs"). A block keeps 32 columns of
// one head's matrix in registers while the rows of a stretch pass by, so the sums of a prompt are those of steps. Four
// lanes share a column: lane `part` has of each 16 elements of a key those from 4 part on.
#include "ptx/cp_async.cuh"
#include "recurrent/column.cuh"

constexpr int THREADS = 128, COLUMNS = THREADS / WARP * WARP_COLUMNS;
// Rows whose queries, keys and values are in shared memory at once, and buffers of these.
constexpr int ROWS = 8, STAGES = 2;

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
    float query[ROWS][KEYS], key[ROWS][KEYS], value[ROWS][COLUMNS], decay[ROWS], strength[ROWS];
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

// Begins to bring `count` rows from `row` on into a stage.
template <int KEYS>
__device__ __forceinline__ void fetch(
    const ScanArgs &args, const Place &place, Stage<KEYS> &stage, uint32_t row, uint32_t count) {
    const uint32_t cols = min((uint32_t)COLUMNS, args.value_dim - place.first_col), thread = threadIdx.x;
    for (uint32_t i = 0; i < count; i++) {
        const size_t key = ((size_t)(row + i) * args.key_heads + place.key_head) * args.key_dim;
        for (uint32_t k = thread; k < args.key_dim; k += THREADS) {
            copy_4(shared_address(&stage.query[i][k]), args.queries + key + k);
            copy_4(shared_address(&stage.key[i][k]), args.keys + key + k);
        }
    }
    for (uint32_t at = thread; at < count * COLUMNS; at += THREADS) {
        const uint32_t i = at / COLUMNS, col = at % COLUMNS;
        const size_t value = ((size_t)(row + i) * args.heads + place.head) * args.value_dim + place.first_col + col;
        if (col < cols) copy_4(shared_address(&stage.value[i][col]), args.values + value);
    }
    if (thread < count) {
        const size_t gate = (size_t)(row + thread) * args.heads + place.head;
        copy_4(shared_address(&stage.decay[thread]), args.decay + gate);
        if (args.strength != nullptr) copy_4(shared_address(&stage.strength[thread]), args.strength + gate);
    }
    commit_copies();
}

// Makes of a row's gates how much of the matrix is kept, and how much of the values enters.
template <int KEYS>
__device__ __forceinline__ void finish_gates(const ScanArgs &args, uint32_t head, Stage<KEYS> &stage, uint32_t count) {
    const uint32_t i = threadIdx.x;
    if (i >= count) return;
    const bool is_delta = args.strength != nullptr;
    const Entering gates(stage.decay[i], stage.strength[i], is_delta, args.bias[head], args.rate[head]);
    stage.decay[i] = gates.kept, stage.strength[i] = gates.strength;
}

#define SCAN(family, file, name, keys)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ ScanArgs args, Shape) { \
        __shared__ __align__(16) Stage<keys> stages[STAGES];                                                   \
        scan<keys>(args, stages);                                                                              \
    }

template <int KEYS>
__device__ __forceinline__ void scan(const ScanArgs &args, Stage<KEYS> (&stages)[STAGES]) {
    launch_dependents();
    const Stretch stretch = args.stretches[blockIdx.y];
    const Place place(args);
    const uint64_t offset =
        column_at(args.state, place.head, args.value_dim, args.key_dim, place.first_col + place.lane_col);
    const bool has_column = place.first_col + place.lane_col < (args.value_dim + BLOCK - 1) / BLOCK * BLOCK;
    const bool is_written = place.first_col + place.lane_col < args.value_dim && place.part == 0;
    Column<KEYS> column;
    // What earlier steps left is there before the wait.
    const bool has_state = has_column && stretch.count > 0 && stretch.from != NONE;
    const float *from = has_state ? record_at(args.records, stretch.from, offset) : nullptr;
    load_column<KEYS>(from, place.part, args.key_dim, column);
    for (int i = threadIdx.x; i < (int)sizeof(stages) / 4; i += THREADS) reinterpret_cast<float *>(stages)[i] = 0.0f;
    const float skip = args.skip == nullptr ? 0.0f : args.skip[place.head];
    __syncthreads();
    await_dependencies();
    for (uint32_t start = 0, stage = 0; start < stretch.count; start += ROWS, stage ^= 1) {
        const uint32_t rows = min((uint32_t)ROWS, stretch.count - start), next = start + ROWS;
        if (start == 0) fetch<KEYS>(args, place, stages[0], stretch.first, rows);
        if (next < stretch.count) {
            const uint32_t more = min((uint32_t)ROWS, stretch.count - next);
            fetch<KEYS>(args, place, stages[stage ^ 1], stretch.first + next, more);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        __syncthreads();
        finish_gates<KEYS>(args, place.head, stages[stage], rows);
        __syncthreads();
        for (uint32_t i = 0; i < rows; i++) {
            if (start + i + 1 == stretch.count && stretch.before != NONE && has_column) {
                store_column<KEYS>(column, place.part, args.key_dim, record_at(args.records, stretch.before, offset));
            }
            const Stage<KEYS> &own = stages[stage];
            const Gates gates{own.decay[i], own.strength[i], args.strength != nullptr, skip};
            const float v =
                take_row<KEYS>(own.query[i], own.key[i], own.value[i][place.lane_col], gates, place.part, column);
            const size_t at = ((size_t)(stretch.first + start + i) * args.heads + place.head) * args.value_dim;
            if (is_written) args.out[at + place.first_col + place.lane_col] = v;
        }
        __syncthreads();
    }
    if (has_column && stretch.count > 0) {
        store_column<KEYS>(column, place.part, args.key_dim, record_at(args.records, stretch.to, offset));
    }
}

#include "kernels.def"
