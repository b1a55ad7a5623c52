// The choice of each row's experts, a block a row (experts/route.cuh).
#include "experts/route.cuh"

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route(const __grid_constant__ RouteArgs args, Shape) {
    __shared__ RouteStorage space;
    await_then_launch();
    choose_experts(args, args.logits + (size_t)blockIdx.x * args.experts, blockIdx.x, space);
}
