// Products of 8-bit activations with the quantized matrices of experts, for steps of few rows. All weights of a block
// are in flight at once, as soon as its experts are known. The expert that every row has may come along with them, and
// where a single row comes before its norm and its choice, each block makes both, while its weights are on their way or
// in order to know them. Blocks of the sum begin once those of the unit before it have asked for their weights, and
// have their own on the way beside it. The sums of a product are those of every kernel; the sum over a row's experts
// goes by slots of its choice.
#include "experts/route_warp.cuh"
#include "gemv/single_stage.cuh"

// The gated unit of a pair: activate(gate) * up, with the 8-bit form of it.
struct ExpertUnitArgs {
    Activation x, out;
    const float *choice;
    ExpertTable gate, up;
    GatedUnit unit;
    uint32_t chosen, width;
    // The same of the expert that every row has, with a row for each; no width for none.
    Activation shared_out;
    ExpertTable shared_gate, shared_up;
    uint32_t shared_width;
    // Of a norm by the root of the mean square, whose input is in `x`; no weights for none.
    float eps;
    const float *norm;
    RouteArgs route;  // what makes `choice`, if that is not there; no logits for nothing
};
static_assert(sizeof(ExpertUnitArgs) == 456, "as in args.rs");

// The sum over the experts of a row.
struct ExpertSumArgs {
    Activation x;  // a row for each pair
    const float *choice;
    float *out;
    ExpertTable table;
    uint32_t chosen, width;
    float adds;         // what the result is multiplied by and then added to `out`; 0 where it takes the place of that
    uint32_t is_early;  // whether the launch before this one is that of the unit, which waits, or makes `choice`, first
    // The expert that every row has: its inner values and its matrix, no data for none; and the logit of its gate, null
    // where it counts in full.
    Activation shared_x;
    Matrix shared;
    const float *shared_gate;
};
static_assert(sizeof(ExpertSumArgs) == 200, "as in args.rs");

// Outputs of a block of a gated unit, which make an 8-bit block, and of one of its warps.
constexpr uint32_t UNIT_OUTPUTS = 32, WARP_OUTPUTS = UNIT_OUTPUTS / WARPS;
// Outputs of a warp that sums, and slots whose products are added at a time.
constexpr uint32_t SUM_OUTPUTS = 2, SLOTS = SUM_ROWS / SUM_OUTPUTS;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t units_of(uint32_t cols) { return (cols + QUANT_COLS - 1) / QUANT_COLS; }

// Puts the blocks of `count` rows of `cols` columns where the products read them, whole units for each. Several loads
// of a thread are in flight at once.
__device__ __forceinline__ void put_rows(
    const Activation &x, size_t row, uint32_t count, uint32_t cols, uint8_t *units) {
    const uint32_t halves = cols / 16, all = count * halves, row_bytes = units_of(cols) * ROW_OF_UNIT;
    const int4 *q = reinterpret_cast<const int4 *>(x.q + row * cols);
    const int2 *meta = reinterpret_cast<const int2 *>(x.meta + row * (cols / 32));
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < all; i += blockDim.x) {
        const uint32_t own = i / halves, half = i - own * halves, group = half / 2, index = group % SLICE_GROUPS;
        uint8_t *unit = units + own * row_bytes + group / SLICE_GROUPS * ROW_OF_UNIT;
        *reinterpret_cast<int4 *>(unit + half % 2 * UPPER + index * 16) = q[i];
        if (half % 2 == 0) *reinterpret_cast<int2 *>(unit + FACTORS + index * sizeof(Meta)) = meta[i / 2];
    }
}

struct UnitStorage {
    __align__(16) float sums[WARPS][SUM_ROWS * SUM_STRIDE];
    float outputs[UNIT_OUTPUTS], shares[WARPS];
    uint32_t experts[WARP];
    unsigned long long barriers[WARPS];
    LevelWords level_words;
};

static_assert(sizeof(RouteStorage) <= 15 << 10, "as in select/experts.rs");

// Whether the block lets the next launch begin only when it has written the experts of its row, which that reads early.
__device__ __forceinline__ bool writes_choice(const ExpertUnitArgs &args, uint32_t block) {
    return args.route.logits != nullptr && block == 0;
}

// Chooses for the only row, in shared memory that copies fill behind that; the expert in slot `slot`.
__device__ __forceinline__ uint32_t choose_by_block(
    const RouteArgs &args, bool writes, uint32_t slot, uint8_t *shared) {
    RouteStorage &space = *reinterpret_cast<RouteStorage *>(shared);
    rank_experts(args, [&](uint32_t i) { return __ldcg(args.logits + i); }, space);
    if (writes) write_choice(args, 0, space);
    const uint32_t expert = space.ids[slot];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return expert;
}

// The same by the first warp, of the slots up to the block's, or of all whose experts it writes; the weights come last
// of all.
__device__ __forceinline__ void choose_by_warp(const RouteArgs &args, bool writes, uint32_t slot, UnitStorage &own) {
    const uint32_t lane = threadIdx.x % WARP, expert = find_experts(args, writes ? args.chosen : slot + 1);
    own.experts[lane] = expert;
    if (writes && lane < args.chosen) args.choice[lane] = __uint_as_float(expert);
}

// The expert of the block's pair.
__device__ __forceinline__ uint32_t expert_of_block(
    const ExpertUnitArgs &args, uint32_t pair, uint32_t block, uint8_t *shared, UnitStorage &own) {
    if (args.route.logits == nullptr) return expert_of(args.choice, args.chosen, pair);
    const bool writes = writes_choice(args, block), fits = fits_warp(args.route);
    uint32_t expert = 0;
    if (!fits) expert = choose_by_block(args.route, writes, pair, shared);
    else if (warp_number() == 0) choose_by_warp(args.route, writes, pair, own);
    __syncthreads();
    return fits ? own.experts[pair] : expert;
}

template <uint32_t TYPE>
__device__ __forceinline__ void expert_unit(const ExpertUnitArgs &args, UnitStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP, across = args.width / UNIT_OUTPUTS;
    // Blocks of a row: those of its pairs, then those of the expert that every row has.
    const uint32_t of_pairs = args.chosen * across, blocks = of_pairs + args.shared_width / UNIT_OUTPUTS;
    const uint32_t row = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const bool is_shared = block >= of_pairs;
    const uint32_t pair = row * args.chosen + block / across;
    const uint32_t tile = (is_shared ? block - of_pairs : block % across) * UNIT_OUTPUTS,
                   first = tile + warp * WARP_OUTPUTS, width = is_shared ? args.shared_width : args.width;
    const ExpertTable &gates = is_shared ? args.shared_gate : args.gate, &ups = is_shared ? args.shared_up : args.up;
    const Matrix &m = gates.matrix;
    const uint32_t bytes = WARP_OUTPUTS * m.row_bytes, barrier = shared_address(own.barriers + warp);
    if (elect_lane()) make_barrier(barrier, 1), publish_barriers();
    make_level_words<TYPE>(own.level_words);
    const uint8_t *weights = shared + warp * 2 * bytes;
    uint8_t *units = shared + WARPS * 2 * bytes;
    NormedBlocks<> normed(NormInput{args.x.x, args.norm, m.cols}, shared_address(units));
    const bool norms = args.norm != nullptr;
    if (norms) normed.ask_for_weights();
    __syncwarp();
    await_dependencies();
    if (norms) normed.ask_for_values();
    const uint32_t expert = is_shared ? 0 : expert_of_block(args, pair, block, shared, own);
    if (elect_lane()) {
        announce(barrier, 2 * bytes);
        copy_run(shared_address(weights), m.data + (size_t)row_of(gates, expert, first) * m.row_bytes, bytes, barrier);
        copy_run(shared_address(weights) + bytes, ups.matrix.data + (size_t)row_of(ups, expert, first) * m.row_bytes,
            bytes, barrier);
    }
    __syncwarp();
    const bool writes = writes_choice(args, block);
    if (writes) __threadfence();
    if (!writes || warp == 0) launch_dependents();
    float factor = 1.0f;
    if (norms) {
        normed.put(own.shares);
    } else {
        put_rows(args.x, row, 1, m.cols, units);
        if (args.x.factors != nullptr) factor = args.x.factors[row];
    }
    __syncthreads();
    if (norms) factor = norm_factor(own.shares, m.cols, args.eps);
    const LevelWords level_words = own.level_words;
    wait_phase(barrier, 0);
#pragma unroll 1
    for (uint32_t i = 0; i < WARP_OUTPUTS; i++) {
        float sum[2] = {};
        add_two_rows<TYPE>(weights + i * m.row_bytes, bytes, m.cols / 32, units, level_words, sum);
        float *place = own.sums[warp] + 2 * i * SUM_STRIDE + lane;
        place[0] = sum[0], place[SUM_STRIDE] = sum[1];
    }
    __syncwarp();
    // Every four lanes have the sum of a row: of gate and up in turn.
    const uint32_t output = lane / 8;
    const ExpertTable &table = lane / 4 % 2 ? ups : gates;
    const float v =
        finish_output(table, expert, pair, width, first + output, __fmul_rn(add_lanes(own.sums[warp]), factor));
    const float up = __shfl_down_sync(ALL_LANES, v, 4);
    if (lane % 8 == 0) own.outputs[warp * WARP_OUTPUTS + output] = args.unit(v, up);
    __syncthreads();
    if (warp == 0) {
        emit_blocks(
            is_shared ? args.shared_out : args.out, is_shared ? row : pair, tile + lane, width, own.outputs[lane]);
        if (writes && fits_warp(args.route)) write_weights(args.route, own.experts[lane], own.sums[0]);
    }
}

struct SumStorage {
    unsigned long long barriers[WARPS];
    uint32_t experts[MOST_CHOSEN];
    float weights[MOST_CHOSEN];
    LevelWords level_words;
};

// Blocks may have fewer than eight warps, but a thread for each slot.
template <uint32_t TYPE>
__device__ __forceinline__ void expert_sum(const ExpertSumArgs &args, SumStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP, warps = blockDim.x / WARP,
                   outputs = warps * SUM_OUTPUTS;
    const uint32_t across = (args.width + outputs - 1) / outputs, row = blockIdx.x / across;
    const uint32_t first = (blockIdx.x % across * warps + warp) * SUM_OUTPUTS;
    const ExpertTable &table = args.table;
    const Matrix &m = table.matrix;
    const uint32_t bytes = SUM_OUTPUTS * m.row_bytes, barrier = shared_address(own.barriers + warp);
    const bool has_outputs = first < args.width, has_shared = args.shared.data != nullptr;
    const uint32_t shared_bytes = has_shared ? SUM_OUTPUTS * args.shared.row_bytes : 0,
                   warp_bytes = args.chosen * bytes + shared_bytes;
    if (elect_lane()) make_barrier(barrier, 1), publish_barriers();
    make_level_words<TYPE>(own.level_words);
    __syncwarp();
    launch_dependents();
    if (!args.is_early) await_dependencies();
    const uint8_t *weights = shared + warp * warp_bytes;
    // A launch that begins early finds the experts there, as blocks of the unit have waited for them or written them
    // first, and their weights behind its wait.
    const float *choice = args.choice + (size_t)row * 2 * args.chosen;
    const bool has_slot = threadIdx.x < args.chosen;
    const auto read_expert = [&] { return has_slot ? __float_as_uint(__ldcg(choice + threadIdx.x)) : 0; };
    const auto put_expert = [&](uint32_t expert) {
        if (has_slot) own.experts[threadIdx.x] = expert;
        __syncthreads();
    };
    const auto ask_for_weights = [&] {
        if (elect_lane()) {
            announce(barrier, warp_bytes);
            if (has_shared) {
                copy_run(shared_address(weights) + args.chosen * bytes,
                    args.shared.data + (size_t)first * args.shared.row_bytes, shared_bytes, barrier);
            }
        }
        __syncwarp();
        for (uint32_t slot = lane; slot < args.chosen; slot += WARP) {
            const uint32_t from = row_of(table, own.experts[slot], first);
            copy_run(shared_address(weights) + slot * bytes, m.data + (size_t)from * m.row_bytes, bytes, barrier);
        }
    };
    const uint32_t early_expert = read_expert();
    put_expert(early_expert);
    if (has_outputs) ask_for_weights();
    if (args.is_early) await_dependencies();
    const uint32_t expert = read_expert();
    const float weight = has_slot ? __ldcg(choice + args.chosen + threadIdx.x) : 0.0f;
    uint8_t *units = shared + warps * warp_bytes;
    const uint32_t unit_bytes = units_of(m.cols) * ROW_OF_UNIT;
    put_rows(args.x, (size_t)row * args.chosen, args.chosen, m.cols, units);
    if (has_shared) put_rows(args.shared_x, row, 1, args.shared.cols, units + args.chosen * unit_bytes);
    const uint32_t all_units = args.chosen * unit_bytes + (has_shared ? units_of(args.shared.cols) * ROW_OF_UNIT : 0);
    float *sums = reinterpret_cast<float *>(units + all_units) + warp * SUM_ROWS * SUM_STRIDE;
    const float gate = args.shared_gate != nullptr ? args.shared_gate[row] : 0.0f;
    const uint32_t column = first + lane % SUM_OUTPUTS;
    float *out = args.out + (size_t)row * args.width + column;
    const float residual = has_outputs && args.adds && lane < SUM_OUTPUTS ? *out : 0.0f;
    // Only a wait makes sure what a block sees. Experts that were others before it have never been seen, and are let
    // go.
    if (has_slot) own.weights[threadIdx.x] = weight;
    const bool begins_again = __syncthreads_or(expert != early_expert);
    if (begins_again) {
        if (has_outputs) wait_phase(barrier, 0);
        put_expert(expert);
        if (has_outputs) ask_for_weights();
    }
    if (!has_outputs) return;
    const LevelWords level_words = own.level_words;
    wait_phase(barrier, begins_again);
    float total = 0.0f;
#pragma unroll 1
    for (uint32_t begin = 0; begin < args.chosen; begin += SLOTS) {
        const uint32_t count = min(SLOTS, args.chosen - begin);
        float sum[SLOTS][2] = {};
        add_pairs<TYPE, SLOTS>(PairsOfRows{weights + begin * bytes, bytes, m.row_bytes, count}, m.cols / 32,
            units + begin * unit_bytes, unit_bytes, level_words, sum);
#pragma unroll
        for (uint32_t i = 0; i < SLOTS; i++) {
            float *place = sums + 2 * i * SUM_STRIDE + lane;
            place[0] = sum[i][0], place[SUM_STRIDE] = sum[i][1];
        }
        __syncwarp();
        // Every four lanes have a product: of both outputs in turn, slot by slot.
        const uint32_t slot = min(begin + lane / 8, args.chosen - 1);
        float v = add_lanes(sums);
        if (args.x.factors != nullptr) v = __fmul_rn(v, args.x.factors[(size_t)row * args.chosen + slot]);
        v = finish_output(table, own.experts[slot], row * args.chosen + slot, args.width, first + lane / 4 % 2, v);
        for (uint32_t i = 0; i < count; i++) {
            const float product = __shfl_sync(ALL_LANES, v, 8 * i + lane % SUM_OUTPUTS * 4);
            total = __fmaf_rn(own.weights[begin + i], product, total);
        }
        __syncwarp();
    }
    if (has_shared) {
        float sum[2] = {};
        add_two_rows<TYPE>(weights + args.chosen * bytes, args.shared.row_bytes, args.shared.cols / 32,
            units + args.chosen * unit_bytes, level_words, sum);
        float *place = sums + lane;
        place[0] = sum[0], place[SUM_STRIDE] = sum[1];
        __syncwarp();
        float v = add_lanes(sums);
        if (args.shared_x.factors != nullptr) v = __fmul_rn(v, args.shared_x.factors[row]);
        v = __shfl_sync(ALL_LANES, v, lane % SUM_OUTPUTS * 4);
        total = __fadd_rn(total, args.shared_gate != nullptr ? __fmul_rn(v, sigmoid_of(gate)) : v);
    }
    if (lane < SUM_OUTPUTS) *out = args.adds ? __fmaf_rn(args.adds, total, residual) : total;
}

// The host does not choose these kernels where they were compiled for less than compute capability 9.0.
#define EXPERT_KERNEL(name, RESIDENT_BLOCKS, Arguments, Storage, function)     \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP, RESIDENT_BLOCKS) \
        name(const __grid_constant__ Arguments args, Shape) {                  \
        __shared__ Storage space;                                              \
        function(args, space);                                                 \
    }
#else
#define EXPERT_KERNEL(name, RESIDENT_BLOCKS, Arguments, Storage, function) \
    extern "C" __global__ void name(const __grid_constant__ Arguments, Shape) {}
#endif

#define EXPERT_UNIT(family, file, name, TYPE) EXPERT_KERNEL(name, 3, ExpertUnitArgs, UnitStorage, expert_unit<TYPE>)
#define EXPERT_SUM(family, file, name, TYPE) EXPERT_KERNEL(name, 2, ExpertSumArgs, SumStorage, expert_sum<TYPE>)
#include "kernels.def"
