// The first kernel of a step: takes the rows, their outputs and the changed page-table entries from mapped host memory
// to their fixed places on the device, computes the angles of every row's position, and decodes the embedding of its
// token to f32. One block a row.
#include "recurrent/stretch.cuh"
#include "sampling/draw.cuh"
#include "step/table_row.cuh"

struct __align__(8) TableUpdate {
    uint32_t index, page;
};

// The rotations of a program: layers may differ in theirs.
constexpr int MOST_ROPES = 4;

struct Angles {
    const float *frequencies;  // radians a position
    float *cos, *sin;          // of each row, `half_dims` of them
    uint32_t half_dims;        // 0 where there is no such rotation
    float magnitude;
};

struct StepArgs {
    const Row *host_rows;
    const uint32_t *host_outputs;
    const TableUpdate *host_updates;
    const uint32_t *host_header;  // serial number of the step, number of updates
    const Draw *host_draws;
    Row *rows;
    uint32_t *outputs;
    uint32_t *tables;
    uint32_t *serial;
    unsigned long long *best;  // cleared for the kernels that choose tokens
    Draw *draws;
    const Stretch *host_stretches;
    Stretch *stretches;
    uint32_t most_stretches;  // of a pass; 0 where no layer has a state
    uint32_t ahead;           // positions by which rows are rotated further than what they see goes
    Angles angles[MOST_ROPES];
    Matrix embedding;
    float *embedded;
};
static_assert(sizeof(StepArgs) == 280, "as in args.rs");

constexpr uint32_t DRAW_WORDS = sizeof(Draw) / 4, STRETCH_WORDS = sizeof(Stretch) / 4;
// Threads of a block: a warp for the lists, some for the angles, and some for the embedding.
constexpr uint32_t LIST_THREADS = WARP, ANGLE_THREADS = 3 * WARP,
                   THREADS = LIST_THREADS + ANGLE_THREADS + EMBED_THREADS;

// What the host says of a step, on its way.
struct Lists {
    uint4 row;
    uint2 header;
    uint32_t output, draw, stretch;
};

// All that every step needs is asked for at once, each piece by one lane: a trip to the host's memory takes longer than
// the rest, and trips queue up. Only the first row asks for what all rows share.
__device__ __forceinline__ Lists ask(const StepArgs &args, const Shape &shape, uint32_t row, uint32_t lane) {
    Lists lists{};
    if (lane == 0) lists.row = __ldcv(reinterpret_cast<const uint4 *>(args.host_rows + row));
    if (row == 0 && lane == 0) lists.header = __ldcv(reinterpret_cast<const uint2 *>(args.host_header));
    if (row == 0 && lane < shape.outputs) lists.output = __ldcv(args.host_outputs + lane);
    if (shape.draws != 0 && row < shape.outputs && lane < DRAW_WORDS) {
        lists.draw = __ldcv(reinterpret_cast<const uint32_t *>(args.host_draws + row) + lane);
    }
    if (row < args.most_stretches && lane < STRETCH_WORDS) {
        lists.stretch = __ldcv(reinterpret_cast<const uint32_t *>(args.host_stretches + row) + lane);
    }
    return lists;
}

__device__ __forceinline__ void put_lists(
    const StepArgs &args, const Shape &shape, uint32_t row, uint32_t lane, const Lists &lists) {
    if (lane == 0) args.rows[row] = Row{lists.row.x, lists.row.y, lists.row.z, lists.row.w};
    if (shape.draws != 0 && row < shape.outputs && lane < DRAW_WORDS)
        reinterpret_cast<uint32_t *>(args.draws + row)[lane] = lists.draw;
    if (row < args.most_stretches && lane < STRETCH_WORDS)
        reinterpret_cast<uint32_t *>(args.stretches + row)[lane] = lists.stretch;
    if (row != 0) return;
    if (lane == 0) *args.serial = lists.header.x;
    for (uint32_t i = lane; i < shape.outputs; i += WARP) {
        args.outputs[i] = i == lane ? lists.output : __ldcv(args.host_outputs + i);
        args.best[i] = 0;
    }
    const uint32_t updates = __shfl_sync(ALL_LANES, lists.header.y, 0);
    for (uint32_t i = lane; i < updates; i += WARP) {
        const uint2 update = __ldcv(reinterpret_cast<const uint2 *>(args.host_updates + i));
        args.tables[update.x] = update.y;
    }
}

__device__ __forceinline__ void put_angles(const Angles &args, uint32_t row, uint32_t first, uint32_t position) {
    for (uint32_t i = first; i < args.half_dims; i += ANGLE_THREADS) {
        // In turns, so that the reduction is exact; single precision would lose the fraction of a large position.
        const double turns = (double)position * (double)args.frequencies[i] * 0.15915494309189533577;
        float s, c;
        sincospif((float)(2.0 * (turns - rint(turns))), &s, &c);
        args.cos[row * args.half_dims + i] = c * args.magnitude;
        args.sin[row * args.half_dims + i] = s * args.magnitude;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) step_begin(const __grid_constant__ StepArgs args, Shape shape) {
    __shared__ uint2 source;  // token and position
    await_dependencies();
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    Lists lists{};
    if (lane < LIST_THREADS) lists = ask(args, shape, row, lane);
    // The way is gone once with what is at hand, while the host's memory answers: the code is there then.
#pragma unroll 1
    for (bool rehearses = true;; rehearses = false) {
        if (!rehearses) {
            if (lane == 0) source = make_uint2(lists.row.x, lists.row.y);
            __syncthreads();
        }
        const uint2 from = rehearses ? make_uint2(0, 0) : source;
        if (lane < LIST_THREADS) {
            if (!rehearses) {
                put_lists(args, shape, row, lane, lists);
                // Later kernels read the lists before they wait.
                __threadfence();
                __syncwarp();
                launch_dependents();
            }
        } else if (lane < LIST_THREADS + ANGLE_THREADS) {
#pragma unroll 1
            for (const Angles &angles : args.angles) put_angles(angles, row, lane - LIST_THREADS, from.y + args.ahead);
        } else {
            put_table_row(args.embedding, from.x, args.embedded + (size_t)row * args.embedding.cols,
                lane - LIST_THREADS - ANGLE_THREADS);
        }
        if (!rehearses) return;
    }
}
