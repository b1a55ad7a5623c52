// Linear attention through a matrix for each head that decays from row to row: the gated delta rule (Yang et al.,
// "Gated Delta Networks") and selective state spaces (Dao and Gu, "Transformers are SSMs"). A block keeps 32 columns of
// one head's matrix in registers while the rows of a stretch pass by, so the sums of a prompt are those of steps. Four
// lanes share a column: lane `part` has of each 16 elements of a key those from 4 part on.
#include "ptx/cp_async.cuh"
#include "quant/activation.cuh"
#include "recurrent/stretch.cuh"

constexpr int THREADS = 128, COLUMNS = 32, PARTS = 4, BLOCK = 16;
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
        lane_col = threadIdx.x / WARP * (COLUMNS / PARTS) + lane % (WARP / PARTS);
        part = lane / (WARP / PARTS);
    }

    // Of a record, the first row of the lane's column.
    __device__ __forceinline__ uint64_t column(const ScanArgs &args) const {
        const uint32_t blocks = (args.value_dim + BLOCK - 1) / BLOCK, col = first_col + lane_col;
        return args.state + ((uint64_t)head * blocks + col / BLOCK) * args.key_dim * BLOCK + col % BLOCK;
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

// ln(1 + exp(x))
__device__ __forceinline__ float softplus(float x) { return __fadd_rn(fmaxf(x, 0.0f), log1pf(expf(-fabsf(x)))); }

// Makes of a row's gates how much of the matrix is kept, and how much of the values enters.
template <int KEYS>
__device__ __forceinline__ void finish_gates(const ScanArgs &args, uint32_t head, Stage<KEYS> &stage, uint32_t count) {
    const uint32_t i = threadIdx.x;
    if (i >= count) return;
    const float step = softplus(__fadd_rn(stage.decay[i], args.bias[head]));
    stage.decay[i] = expf(__fmul_rn(args.rate[head], step));
    stage.strength[i] = args.strength != nullptr ? sigmoid_of(stage.strength[i]) : step;
}

// The sum over the lanes that share a column.
__device__ __forceinline__ float sum_of_parts(const float (&sums)[PARTS]) {
    float sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, WARP / PARTS));
    return __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2 * WARP / PARTS));
}

template <int KEYS>
using Column = float[KEYS / PARTS];

template <int KEYS>
__device__ __forceinline__ void load_column(
    const ScanArgs &args, const Place &place, const float *from, Column<KEYS> &column) {
#pragma unroll
    for (int i = 0; i < KEYS / PARTS; i++) {
        const uint32_t k = i / 4 * BLOCK + 4 * place.part + i % 4;
        column[i] = from != nullptr && k < args.key_dim ? from[(size_t)k * BLOCK] : 0.0f;
    }
}

template <int KEYS>
__device__ __forceinline__ void store_column(
    const ScanArgs &args, const Place &place, const Column<KEYS> &column, float *to) {
#pragma unroll
    for (int i = 0; i < KEYS / PARTS; i++) {
        const uint32_t k = i / 4 * BLOCK + 4 * place.part + i % 4;
        if (k < args.key_dim) to[(size_t)k * BLOCK] = column[i];
    }
}

// Takes a column of the matrix through row `i` of a stage; the row's result.
template <int KEYS>
__device__ __forceinline__ float take_row(
    const Place &place, const Stage<KEYS> &stage, uint32_t i, bool is_delta, float skip, Column<KEYS> &column) {
    const float4 *key = reinterpret_cast<const float4 *>(stage.key[i]) + place.part;
    const float4 *query = reinterpret_cast<const float4 *>(stage.query[i]) + place.part;
    const float kept = stage.decay[i], strength = stage.strength[i], value = stage.value[i][place.lane_col];
    float known[PARTS] = {}, sums[PARTS] = {};
#pragma unroll
    for (int j = 0; j < KEYS / BLOCK; j++) {
        const float4 k = key[j * PARTS];
        const float elements[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            column[4 * j + e] = __fmul_rn(column[4 * j + e], kept);
            known[e] = __fmaf_rn(column[4 * j + e], elements[e], known[e]);
        }
    }
    const float entering = is_delta ? __fsub_rn(value, sum_of_parts(known)) : value;
    const float added = __fmul_rn(entering, strength);
#pragma unroll
    for (int j = 0; j < KEYS / BLOCK; j++) {
        const float4 k = key[j * PARTS], q = query[j * PARTS];
        const float elements[4] = {k.x, k.y, k.z, k.w}, factors[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            column[4 * j + e] = __fmaf_rn(elements[e], added, column[4 * j + e]);
            sums[e] = __fmaf_rn(column[4 * j + e], factors[e], sums[e]);
        }
    }
    return __fmaf_rn(skip, value, sum_of_parts(sums));
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
    const uint64_t offset = place.column(args);
    const bool has_column = place.first_col + place.lane_col < (args.value_dim + BLOCK - 1) / BLOCK * BLOCK;
    const bool is_written = place.first_col + place.lane_col < args.value_dim && place.part == 0;
    Column<KEYS> column;
    // What earlier steps left is there before the wait.
    const bool has_state = has_column && stretch.count > 0 && stretch.from != NONE;
    load_column<KEYS>(args, place, has_state ? record_at(args.records, stretch.from, offset) : nullptr, column);
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
                store_column<KEYS>(args, place, column, record_at(args.records, stretch.before, offset));
            }
            const float v = take_row<KEYS>(place, stages[stage], i, args.strength != nullptr, skip, column);
            const size_t at = ((size_t)(stretch.first + start + i) * args.heads + place.head) * args.value_dim;
            if (is_written) args.out[at + place.first_col + place.lane_col] = v;
        }
        __syncthreads();
    }
    if (has_column && stretch.count > 0) {
        store_column<KEYS>(args, place, column, record_at(args.records, stretch.to, offset));
    }
}

#include "kernels.def"
