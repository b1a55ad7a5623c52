// A step of a layer with a state in one launch: convolutions of queries, keys and values with SiLU, norms of heads, the
// scan, the norm of its result and the gated unit behind that. A block a head and row; the bits are those of
// `convolve`, `scan` and `normalize`.
#include "elementwise/rms_norm.cuh"
#include "recurrent/channel.cuh"
#include "recurrent/column.cuh"

// Most elements of a key and of a value, and most taps.
constexpr int KEYS = 128, VALUES = 128, TAPS = 4;
// Threads of each of queries, keys and values, and of the block: four for each element of a value.
constexpr int PART_THREADS = 128, THREADS = VALUES * PARTS, PART_WARPS = PART_THREADS / WARP;
static_assert(KEYS == PART_THREADS && VALUES == PART_THREADS && NORM_THREADS >= VALUES / 4, "a thread an element");

struct RecurrentStepArgs {
    Convolution queries, keys, values;
    const float *query_norm, *key_norm;  // null for none
    const float *decay, *strength;       // an element for each head; no strength for a state space
    const float *bias, *rate, *skip;     // likewise, for all rows; no skip for none
    const float *norm;                   // of the result's heads
    const float *gate;                   // whose activation the result is multiplied by
    Activation out;
    const Stretch *stretches;
    Records records;
    uint64_t state;  // as scan.cu has it
    Sigmoid unit;
    uint32_t heads, key_heads, key_dim, value_dim;
    uint32_t is_tiled, taps;
    float query_eps, key_eps, norm_eps;
    uint32_t pad;
};
static_assert(sizeof(RecurrentStepArgs) == 280, "as in args.rs");

struct StepStorage {
    __align__(16) float query[KEYS];
    __align__(16) float key[KEYS];
    __align__(16) float value[VALUES];
    __align__(16) float result[VALUES];
    float shares[THREADS / WARP];
};

// Which element of which value a thread makes: 0 queries, 1 keys, 2 values, 3 none.
struct Element {
    uint32_t part, index, width, col;
    bool is_inside, is_kept;  // whether it is there, and whether this block leaves it to the next pass

    __device__ __forceinline__ Element(const RecurrentStepArgs &args, uint32_t head, bool is_row) {
        const uint32_t group = args.heads / args.key_heads;
        const uint32_t key_head = args.is_tiled ? head % args.key_heads : head / group;
        // The first head of a key head's.
        const bool is_first = args.is_tiled ? head < args.key_heads : head % group == 0;
        part = threadIdx.x / PART_THREADS, index = threadIdx.x % PART_THREADS;
        const bool is_value = part == 2;
        const uint32_t dim = is_value ? args.value_dim : args.key_dim;
        width = (is_value ? args.heads : args.key_heads) * dim;
        col = (is_value ? head : key_head) * dim + index;
        is_inside = is_row && part < 3 && index < dim;
        is_kept = is_inside && (is_value || is_first);
    }
};

// Puts the convolved row of the block's head into shared memory, behind the wait.
__device__ __forceinline__ void put_convolved(
    const RecurrentStepArgs &args, const Element &element, float v, float norm, StepStorage &space) {
    const uint32_t warp = threadIdx.x / WARP;
    v = activate(Sigmoid{1.0f, 0.0f}, v);
    const float squares = warp_sum(element.is_inside ? __fmul_rn(v, v) : 0.0f);
    if (threadIdx.x % WARP == 0) space.shares[warp] = squares;
    __syncthreads();
    const float *weights = element.part == 0 ? args.query_norm : args.key_norm;
    if (element.part < 2 && weights != nullptr) {
        const float eps = element.part == 0 ? args.query_eps : args.key_eps;
        const float *shares = space.shares + element.part * PART_WARPS;
        v = __fmul_rn(__fmul_rn(v, head_factor(shares, PART_WARPS, args.key_dim, eps)), norm);
    }
    float *to = element.part == 0 ? space.query : element.part == 1 ? space.key : space.value;
    if (element.part < 3) to[element.index] = element.is_inside ? v : 0.0f;
    __syncthreads();
}

// The norm of the head's result and its gated unit, by the first warp.
__device__ __forceinline__ void put_result(
    const RecurrentStepArgs &args, const StepStorage &space, size_t at, const float4 &weight, const float4 &gate) {
    const uint32_t quad = threadIdx.x, quads = args.value_dim / 4;
    const bool is_inside = quad < quads;
    const float4 v = is_inside ? reinterpret_cast<const float4 *>(space.result)[quad] : make_float4(0, 0, 0, 0);
    const float squares = __fadd_rn(0.0f, warp_sum(add_squares(v, 0.0f)));
    const float factor = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)args.value_dim), args.norm_eps)));
    const auto element = [&](float x, float w, float g) {
        return gated(args.unit, g, __fmul_rn(__fmul_rn(x, factor), w));
    };
    const float4 r = make_float4(element(v.x, weight.x, gate.x), element(v.y, weight.y, gate.y),
        element(v.z, weight.z, gate.z), element(v.w, weight.w, gate.w));
    emit_quad<true>(args.out, at, quad, args.value_dim, is_inside, r);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    recurrent_step(const __grid_constant__ RecurrentStepArgs args, Shape) {
    __shared__ StepStorage space;
    launch_dependents();
    const uint32_t head = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const Stretch stretch = args.stretches[blockIdx.y];
    const bool is_row = stretch.count > 0;
    const Element element(args, head, is_row);
    const Convolution &convolution = element.part == 0 ? args.queries : element.part == 1 ? args.keys : args.values;
    const uint32_t row = stretch.first, part = lane / WARP_COLUMNS, col = warp * WARP_COLUMNS + lane % WARP_COLUMNS;
    // What earlier steps left, and weights, are there before the wait.
    Channel<TAPS> channel(
        convolution, args.records, stretch, element.width, element.col, row, args.taps, element.is_inside);
    const float *norms = element.part == 0 ? args.query_norm : element.part == 1 ? args.key_norm : nullptr;
    const float norm = element.is_inside && norms != nullptr ? norms[element.index] : 0.0f;
    const uint64_t offset = column_at(args.state, head, args.value_dim, args.key_dim, col);
    const bool has_column = is_row && col < args.value_dim;
    Column<KEYS> column;
    const float *from = has_column && stretch.from != NONE ? record_at(args.records, stretch.from, offset) : nullptr;
    load_column<KEYS>(from, part, args.key_dim, column);
    const float bias = args.bias[head], rate = args.rate[head], skip = args.skip == nullptr ? 0.0f : args.skip[head];
    const size_t at = (size_t)row * args.heads + head;
    const bool has_quad = is_row && threadIdx.x < args.value_dim / 4;
    const float4 none = make_float4(0, 0, 0, 0);
    const float4 weight = has_quad ? reinterpret_cast<const float4 *>(args.norm)[threadIdx.x] : none;
    await_dependencies();
    if (!is_row) return;
    const float4 gate =
        has_quad ? reinterpret_cast<const float4 *>(args.gate)[at * (args.value_dim / 4) + threadIdx.x] : none;
    const bool is_delta = args.strength != nullptr;
    const Entering entering(args.decay[at], is_delta ? args.strength[at] : 0.0f, is_delta, bias, rate);
    const float v = channel.result();
    if (element.is_kept) channel.keep(args.records, stretch);
    put_convolved(args, element, v, norm, space);
    const Gates gates{entering.kept, entering.strength, is_delta, skip};
    const float value = has_column ? space.value[col] : 0.0f;
    const float4 *keys = own_elements(space.key, part), *queries = own_elements(space.query, part);
    const float result = take_row<KEYS>(
        [&](int j) { return keys[j * PARTS]; }, [&](int j) { return queries[j * PARTS]; }, value, gates, column);
    if (has_column) store_column<KEYS>(column, part, args.key_dim, record_at(args.records, stretch.to, offset));
    if (has_column && part == 0) space.result[col] = result;
    __syncthreads();
    if (warp == 0) put_result(args, space, at, weight, gate);
}
