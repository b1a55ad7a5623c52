// The first kernel of a step: takes the rows, their outputs and the changed page-table entries from mapped host memory to their
// fixed places on the device, and computes the angles of every row's position. One block a row.
#include "common/draw.cuh"

struct TableUpdate {
    uint32_t index, page;
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
    const float *frequencies;
    float *cos, *sin;
    uint32_t half_dims;
    float magnitude;
};

constexpr uint32_t DRAW_WORDS = sizeof(Draw) / 4;

extern "C" __global__ void __launch_bounds__(128) step_begin(StepArgs args, Shape shape) {
    wait_for_producers();
    const uint32_t row = blockIdx.x;
    __shared__ uint4 source;
    __shared__ uint2 header;
    // All that every step needs is asked for at once, each piece by one thread: a trip to the host's memory takes longer than the rest, and trips
    // queue up. Only the first row asks for what all rows share.
    uint32_t output = 0;
    if (threadIdx.x == 0) source = __ldcv(reinterpret_cast<const uint4 *>(args.host_rows + row));
    if (row == 0) {
        if (threadIdx.x == WARP) header = __ldcv(reinterpret_cast<const uint2 *>(args.host_header));
        if (threadIdx.x < shape.outputs) output = __ldcv(args.host_outputs + threadIdx.x);
    }
    if (shape.draws != 0 && row < shape.outputs && threadIdx.x < DRAW_WORDS) {
        reinterpret_cast<uint32_t *>(args.draws + row)[threadIdx.x] = reinterpret_cast<const volatile uint32_t *>(args.host_draws + row)[threadIdx.x];
    }
    const float frequency = threadIdx.x < args.half_dims ? args.frequencies[threadIdx.x] : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) args.rows[row] = Row{source.x, source.y, source.z, 0};
    for (uint32_t i = threadIdx.x; i < args.half_dims; i += blockDim.x) {
        // In turns, so that the reduction is exact; single precision would lose the fraction of a large position.
        const double turns = (double)source.y * (double)(i == threadIdx.x ? frequency : args.frequencies[i]) * 0.15915494309189533577;
        float s, c;
        sincospif((float)(2.0 * (turns - rint(turns))), &s, &c);
        args.cos[row * args.half_dims + i] = c * args.magnitude;
        args.sin[row * args.half_dims + i] = s * args.magnitude;
    }
    if (row != 0) return;
    if (threadIdx.x == 0) *args.serial = header.x;
    for (uint32_t i = threadIdx.x; i < shape.outputs; i += blockDim.x) {
        args.outputs[i] = i == threadIdx.x ? output : args.host_outputs[i];
        args.best[i] = 0;
    }
    for (uint32_t i = threadIdx.x; i < header.y; i += blockDim.x) {
        args.tables[args.host_updates[i].index] = args.host_updates[i].page;
    }
}
