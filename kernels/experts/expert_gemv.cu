// Products of 8-bit activations with the quantized matrices of experts, for steps of few rows. All weights of a block
// are in flight at once, as soon as its experts are known. The expert that every row has may come along with them, and
// where a single row comes before its norm and its choice, each block makes both, while its weights are on their way or
// in order to know them. Blocks of the sum begin once those of the unit before it have asked for their weights, which
// tells them the choice, and have their own on the way beside it. The sums of a product are those of every kernel; the
// sum over a row's experts goes by slots of its choice.
#include "experts/route_warp.cuh"
#include "gemv/single_stage.cuh"
#include "ptx/flagged.cuh"

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
    Flagged told;     // where the sum finds what `route` chooses early: the experts, then their weights
};
static_assert(sizeof(ExpertUnitArgs) == 480, "as in args.rs");

// The sum over the experts of a row.
struct ExpertSumArgs {
    Activation x;  // a row for each pair
    const float *choice;
    float *out;
    ExpertTable table;
    uint32_t chosen, width;
    float adds;      // what the result is multiplied by and then added to `out`; 0 where it takes the place of that
    uint32_t parts;  // warps that share the slots of an output
    // The expert that every row has: its inner values and its matrix, no data for none; and the logit of its gate, null
    // where it counts in full.
    Activation shared_x;
    Matrix shared;
    const float *shared_gate;
    uint32_t is_early, pad;  // `is_early`: the launch before this one is that of the unit
    Flagged told;            // the choice, where the unit makes it
};
static_assert(sizeof(ExpertSumArgs) == 232, "as in args.rs");

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
    uint32_t expert;
    unsigned long long barriers[WARPS];
    LevelWords level_words;
};

static_assert(sizeof(RouteStorage) <= 15 << 10, "as in select/experts.rs");

// Chooses for the only row, in shared memory that copies fill behind that.
__device__ __forceinline__ const RouteStorage &choose_by_block(const RouteArgs &args, uint8_t *shared) {
    RouteStorage &space = *reinterpret_cast<RouteStorage *>(shared);
    rank_experts(args, [&](uint32_t i) { return __ldcg(args.logits + i); }, space);
    return space;
}

// The expert of the block's pair.
__device__ __forceinline__ uint32_t expert_of_block(
    const ExpertUnitArgs &args, uint32_t pair, uint8_t *shared, UnitStorage &own) {
    if (args.route.logits == nullptr) return expert_of(args.choice, args.chosen, pair);
    if (!fits_warp(args.route)) {
        const uint32_t expert = choose_by_block(args.route, shared).ids[pair];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        return expert;
    }
    if (warp_number() == 0) {
        const uint32_t expert = find_experts(args.route, pair + 1);
        if (threadIdx.x == pair) own.expert = expert;
    }
    __syncthreads();
    return own.expert;
}

// What the last block of the only row does, which has no products: makes the choice, and tells it.
__device__ __forceinline__ void tell_choice(const ExpertUnitArgs &args, uint8_t *shared, UnitStorage &own) {
    const bool by_warp = fits_warp(args.route);
    if (by_warp && warp_number() != 0) return;
    const uint32_t slot = threadIdx.x;
    const bool has_slot = slot < args.chosen, tells = has_slot && args.told.words != nullptr;
    const uint32_t flag = tells ? flag_of(args.told) : 0;
    unsigned long long *told = args.told.words + slot;
    const RouteStorage *space = by_warp ? nullptr : &choose_by_block(args.route, shared);
    uint32_t expert = 0;
    if (by_warp) expert = find_experts(args.route, args.chosen);
    else if (has_slot) expert = space->ids[slot];
    if (tells) put_word(told, expert, flag);
    launch_dependents();
    float weight = 0.0f;
    if (by_warp) weight = find_weight(args.route, expert, own.outputs);
    else if (has_slot) weight = weight_of(args.route, space->weights, slot);
    if (tells) put_word(told + args.chosen, __float_as_uint(weight), flag);
    if (has_slot) args.route.choice[slot] = __uint_as_float(expert), args.route.choice[args.chosen + slot] = weight;
}

template <uint32_t TYPE>
__device__ __forceinline__ void expert_unit(const ExpertUnitArgs &args, UnitStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP, across = args.width / UNIT_OUTPUTS;
    // Blocks of a row: those of its pairs, those of the expert that every row has, and one for a choice.
    const uint32_t of_pairs = args.chosen * across, of_experts = of_pairs + args.shared_width / UNIT_OUTPUTS,
                   blocks = of_experts + (args.route.logits != nullptr);
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
    if (block == of_experts) return tell_choice(args, shared, own);
    if (norms) normed.ask_for_values();
    const uint32_t expert = is_shared ? 0 : expert_of_block(args, pair, shared, own);
    if (elect_lane()) {
        announce(barrier, 2 * bytes);
        copy_run(shared_address(weights), m.data + (size_t)row_of(gates, expert, first) * m.row_bytes, bytes, barrier);
        copy_run(shared_address(weights) + bytes, ups.matrix.data + (size_t)row_of(ups, expert, first) * m.row_bytes,
            bytes, barrier);
    }
    __syncwarp();
    launch_dependents();
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
    }
}

struct SumStorage {
    unsigned long long barriers[WARPS];
    LevelWords level_words;
};

// The lanes' sums of two rows of each of four slots, with the tree of `add_neighbours`: of row `lane % 2` and of slot
// `lane / 2 % 4`.
__device__ __forceinline__ float add_slots(const float (&sum)[4][2]) {
    float of_slots[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) of_slots[i] = share<1>(sum[i][0], sum[i][1]);
    float total = share<4>(share<2>(of_slots[0], of_slots[1]), share<2>(of_slots[2], of_slots[3]));
    total = __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 8));
    return __fadd_rn(total, __shfl_xor_sync(ALL_LANES, total, 16));
}

// Shared memory of a block: weights of each pair of outputs, slot by slot, then of the shared expert; activations;
// experts of slots, and what each counts. Products take the place of weights that are read. Blocks may have fewer than
// eight warps, but a thread for each slot.
template <uint32_t TYPE>
__device__ __forceinline__ void expert_sum(const ExpertSumArgs &args, SumStorage &own) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_number(), lane = threadIdx.x % WARP, warps = blockDim.x / WARP,
                   pairs = warps / args.parts, pair = warp / args.parts, part = warp % args.parts;
    const uint32_t across = (args.width + SUM_OUTPUTS * pairs - 1) / (SUM_OUTPUTS * pairs), row = blockIdx.x / across;
    const uint32_t first = (blockIdx.x % across * pairs + pair) * SUM_OUTPUTS;
    const ExpertTable &table = args.table;
    const Matrix &m = table.matrix;
    const uint32_t each = (args.chosen + args.parts - 1) / args.parts, begin = min(part * each, args.chosen),
                   slots = min(each, args.chosen - begin);
    const bool is_last = part + 1 == args.parts, has_outputs = first < args.width, is_told = args.told.words != nullptr,
               has_shared = args.shared.data != nullptr;
    const uint32_t bytes = SUM_OUTPUTS * m.row_bytes,
                   shared_bytes = has_shared ? SUM_OUTPUTS * args.shared.row_bytes : 0,
                   pair_bytes = args.chosen * bytes + shared_bytes, unit_bytes = units_of(m.cols) * ROW_OF_UNIT,
                   barrier = shared_address(own.barriers + warp);
    uint8_t *weights = shared + pair * pair_bytes, *shared_weights = weights + args.chosen * bytes;
    uint8_t *units = shared + pairs * pair_bytes, *shared_units = units + args.chosen * unit_bytes;
    uint32_t *experts = reinterpret_cast<uint32_t *>(shared_units + units_of(args.shared.cols) * ROW_OF_UNIT);
    float *slot_weights = reinterpret_cast<float *>(experts + args.chosen);
    // Products of a part of the slots, in the place of its weights, and those of the shared expert.
    const auto products = [&](uint32_t of_part) { return reinterpret_cast<float *>(weights + of_part * each * bytes); };
    float *shared_products = reinterpret_cast<float *>(shared_weights);
    if (elect_lane()) make_barrier(barrier, 1), publish_barriers();
    make_level_words<TYPE>(own.level_words);
    __syncwarp();
    launch_dependents();
    if (!args.is_early) await_dependencies();
    const uint32_t slot = threadIdx.x;
    const bool has_slot = slot < args.chosen;
    // Blocks of the unit have waited for all before it when this launch begins: the choice is there, or comes in words.
    const float *choice = args.choice + (size_t)row * 2 * args.chosen + slot;
    const unsigned long long *told = args.told.words + slot;
    if (has_slot) experts[slot] = is_told ? take_word(told, args.told) : __float_as_uint(__ldcg(choice));
    __syncthreads();
    if (has_outputs) {
        if (elect_lane()) {
            announce(barrier, slots * bytes + (is_last ? shared_bytes : 0));
            if (is_last && has_shared) {
                copy_run(shared_address(shared_weights), args.shared.data + (size_t)first * args.shared.row_bytes,
                    shared_bytes, barrier);
            }
        }
        __syncwarp();
        for (uint32_t i = begin + lane; i < begin + slots; i += WARP) {
            const uint32_t from = row_of(table, experts[i], first);
            copy_run(shared_address(weights) + i * bytes, m.data + (size_t)from * m.row_bytes, bytes, barrier);
        }
    }
    const float gate = args.shared_gate != nullptr ? __ldcg(args.shared_gate + row) : 0.0f;
    const uint32_t column = first + lane % SUM_OUTPUTS;
    float *out = args.out + (size_t)row * args.width + column;
    const bool is_out = has_outputs && part == 0 && lane < SUM_OUTPUTS;
    const float residual = is_out && args.adds ? __ldcg(out) : 0.0f;
    const LevelWords level_words = own.level_words;
    if (args.is_early) await_dependencies();
    float weight = 0.0f;
    if (has_slot)
        weight = is_told ? __uint_as_float((uint32_t)__ldcg(told + args.chosen)) : __ldcg(choice + args.chosen);
    put_rows(args.x, (size_t)row * args.chosen, args.chosen, m.cols, units);
    if (has_shared) put_rows(args.shared_x, row, 1, args.shared.cols, shared_units);
    if (has_slot) slot_weights[slot] = weight;
    __syncthreads();
    if (has_outputs) wait_phase(barrier, 0);
    // Every eight lanes have the products of both outputs with four slots.
    const uint32_t side = lane % SUM_OUTPUTS;
#pragma unroll 1
    for (uint32_t i = begin; has_outputs && i < begin + slots; i += SLOTS) {
        const uint32_t count = min(SLOTS, begin + slots - i), own_slot = i + min(lane / SUM_OUTPUTS % SLOTS, count - 1);
        float sum[SLOTS][2] = {};
        add_pairs<TYPE, SLOTS>(PairsOfRows{weights + i * bytes, bytes, m.row_bytes, count}, m.cols / 32,
            units + i * unit_bytes, unit_bytes, level_words, sum);
        float v = add_slots(sum);
        if (args.x.factors != nullptr) v = __fmul_rn(v, args.x.factors[(size_t)row * args.chosen + own_slot]);
        v = finish_output(table, experts[own_slot], row * args.chosen + own_slot, args.width, first + side, v);
        __syncwarp();
        if (lane < SUM_ROWS) products(part)[(own_slot - begin) * SUM_OUTPUTS + side] = v;
    }
    if (has_outputs && has_shared && is_last) {
        float sum[2] = {};
        add_two_rows<TYPE>(
            shared_weights, args.shared.row_bytes, args.shared.cols / 32, shared_units, level_words, sum);
        float v = add_two_sums(sum);
        if (args.shared_x.factors != nullptr) v = __fmul_rn(v, args.shared_x.factors[row]);
        if (args.shared_gate != nullptr) v = __fmul_rn(v, sigmoid_of(gate));
        __syncwarp();
        if (lane < SUM_OUTPUTS) shared_products[side] = v;
    }
    __syncthreads();
    if (is_out) {
        float total = 0.0f;
        for (uint32_t start = 0, of_part = 0; start < args.chosen; start += each, of_part++) {
#pragma unroll 4
            for (uint32_t i = 0; i < min(each, args.chosen - start); i++)
                total = __fmaf_rn(slot_weights[start + i], products(of_part)[i * SUM_OUTPUTS + side], total);
        }
        if (has_shared) total = __fadd_rn(total, shared_products[side]);
        *out = args.adds ? __fmaf_rn(args.adds, total, residual) : total;
    }
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
