// out = x * matrix^T (+ bias) (+ out): up to three matrices of one input in a launch, each with a storage type of its own.
//
// A warp computes ROWS outputs for BATCH rows of x. Each lane adds the groups lane, lane + 32, ... of a weight row in that order, and a fixed
// tree adds the lanes: an output's order of summation depends on the number of columns alone, whatever BATCH is. Products of quantized
// weights and 8-bit activations are exact integers within a group.
#include "common/device.cuh"

struct Segment {
    Matrix matrix;
    const float *bias;
    float *out;
    uint32_t first_tile;
    uint32_t adds;
};

struct MatmulArgs {
    Activation x;
    uint32_t cols, count, tiles;
    uint32_t on_outputs;  // whether x has a row for each output instead of each row of the batch
    Segment segments[3];
};

constexpr int WARPS = 8;
constexpr int ROWS = 2;

// 32 weights as bytes, and the factors of their sums.
struct Group {
    int w[8];
    float scale[2];
    float min;
};

__device__ __forceinline__ float2 halves_at(const uint8_t *plane, size_t index) {
    return __half22float2(reinterpret_cast<const __half2 *>(plane)[index]);
}

__device__ __forceinline__ void split_nibbles(const uint4 &c, int (&w)[8]) {
    w[0] = c.x & 0x0f0f0f0f, w[1] = c.y & 0x0f0f0f0f, w[2] = c.z & 0x0f0f0f0f, w[3] = c.w & 0x0f0f0f0f;
    w[4] = c.x >> 4 & 0x0f0f0f0f, w[5] = c.y >> 4 & 0x0f0f0f0f, w[6] = c.z >> 4 & 0x0f0f0f0f, w[7] = c.w >> 4 & 0x0f0f0f0f;
}

template <int TYPE>
__device__ __forceinline__ Group load_group(const Matrix &m, size_t group) {
    Group g;
    const uint4 *codes = reinterpret_cast<const uint4 *>(m.codes);
    if constexpr (TYPE == Q8_0) {
        const uint4 a = __ldg(codes + 2 * group), b = __ldg(codes + 2 * group + 1);
        g.w[0] = a.x, g.w[1] = a.y, g.w[2] = a.z, g.w[3] = a.w, g.w[4] = b.x, g.w[5] = b.y, g.w[6] = b.z, g.w[7] = b.w;
        g.scale[0] = __half2float(reinterpret_cast<const __half *>(m.blocks)[group]);
        return g;
    }
    split_nibbles(__ldg(codes + group), g.w);
    if constexpr (TYPE == Q5_K) {
        const uint32_t high = __ldg(reinterpret_cast<const uint32_t *>(m.high) + group);
#pragma unroll
        for (int i = 0; i < 8; i++) g.w[i] |= (high >> i & 0x01010101u) << 4;
    }
    if constexpr (TYPE == Q6_K) {
        const uint2 high = __ldg(reinterpret_cast<const uint2 *>(m.high) + group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            g.w[i] |= (high.x >> (2 * i) & 0x03030303u) << 4;
            g.w[4 + i] |= (high.y >> (2 * i) & 0x03030303u) << 4;
        }
        const char2 scales = reinterpret_cast<const char2 *>(m.scales)[group];
        const float d = __half2float(reinterpret_cast<const __half *>(m.blocks)[group / 8]);
        g.scale[0] = d * (float)scales.x, g.scale[1] = d * (float)scales.y;
    } else {
        const uchar2 scales = reinterpret_cast<const uchar2 *>(m.scales)[group];
        const float2 d = halves_at(m.blocks, group / 8);
        g.scale[0] = d.x * (float)scales.x, g.min = d.y * (float)scales.y;
    }
    return g;
}

template <int TYPE>
__device__ __forceinline__ float add_group(const Group &g, const int4 &a, const int4 &b, const Meta &meta, float sum) {
    int low = __dp4a(g.w[3], a.w, __dp4a(g.w[2], a.z, __dp4a(g.w[1], a.y, __dp4a(g.w[0], a.x, 0))));
    int high = __dp4a(g.w[7], b.w, __dp4a(g.w[6], b.z, __dp4a(g.w[5], b.y, __dp4a(g.w[4], b.x, 0))));
    if constexpr (TYPE == Q6_K) {
        low -= 32 * meta.sums.x, high -= 32 * meta.sums.y;
        const float part = __fmaf_rn(g.scale[0], (float)low, __fmul_rn(g.scale[1], (float)high));
        return __fmaf_rn(meta.scale, part, sum);
    }
    float part = __fmul_rn(g.scale[0], (float)(low + high));
    if constexpr (TYPE != Q8_0) part = __fmaf_rn(-g.min, (float)(meta.sums.x + meta.sums.y), part);
    return __fmaf_rn(meta.scale, part, sum);
}

template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_quantized(const MatmulArgs &args, const Matrix &m, const uint32_t (&weight)[ROWS],
                                              const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t groups = args.cols / 32, lane = threadIdx.x % WARP;
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = lane; j < groups; j += WARP) {
        Group g[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) g[r] = load_group<TYPE>(m, (size_t)weight[r] * groups + j);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const size_t at = (size_t)row[n] * groups + j;
            const int4 *q = reinterpret_cast<const int4 *>(args.x.q) + 2 * at;
            const int4 a = q[0], b = q[1];
            const Meta meta = args.x.meta[at];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum[r][n] = add_group<TYPE>(g[r], a, b, meta, sum[r][n]);
        }
    }
}

template <int TYPE, int COUNT>
__device__ __forceinline__ void load_floats(const uint8_t *values, size_t at, float (&w)[COUNT]) {
    if constexpr (TYPE == F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 v = __ldg(reinterpret_cast<const float4 *>(values) + (at + i) / 4);
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
        return;
    }
    const uint4 v = __ldg(reinterpret_cast<const uint4 *>(values) + at / 8);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (TYPE == F16) {
            const float2 pair = __half22float2(reinterpret_cast<const __half2 &>(words[i]));
            w[2 * i] = pair.x, w[2 * i + 1] = pair.y;
        } else {
            w[2 * i] = __uint_as_float(words[i] << 16), w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

template <int TYPE>
__device__ __forceinline__ float load_float(const uint8_t *values, size_t at) {
    if constexpr (TYPE == F32) return reinterpret_cast<const float *>(values)[at];
    if constexpr (TYPE == F16) return __half2float(reinterpret_cast<const __half *>(values)[at]);
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(values)[at]);
}

// Rows of a multiple of 8 columns are read 8 values at a time, others one at a time.
template <int TYPE, int BATCH>
__device__ __forceinline__ void dot_floats(const MatmulArgs &args, const Matrix &m, const uint32_t (&weight)[ROWS],
                                           const uint32_t (&row)[BATCH], float (&sum)[ROWS][BATCH]) {
    const uint32_t lane = threadIdx.x % WARP;
    if (args.cols % 8 != 0) {
        for (uint32_t j = lane; j < args.cols; j += WARP) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float w = load_float<TYPE>(m.codes, (size_t)weight[r] * args.cols + j);
#pragma unroll
                for (int n = 0; n < BATCH; n++) {
                    sum[r][n] = __fmaf_rn(w, args.x.x[(size_t)row[n] * args.cols + j], sum[r][n]);
                }
            }
        }
        return;
    }
    constexpr int UNROLL = BATCH == 1 ? 4 : 1;
#pragma unroll UNROLL
    for (uint32_t j = 8 * lane; j < args.cols; j += 8 * WARP) {
        float w[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_floats<TYPE>(m.codes, (size_t)weight[r] * args.cols + j, w[r]);
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const float4 *x = reinterpret_cast<const float4 *>(args.x.x + (size_t)row[n] * args.cols + j);
            const float4 a = x[0], b = x[1];
            const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int i = 0; i < 8; i++) sum[r][n] = __fmaf_rn(w[r][i], v[i], sum[r][n]);
            }
        }
    }
}

template <int BATCH>
__device__ __forceinline__ void multiply(const MatmulArgs &args, const Shape &shape) {
    wait_for_producers();
    const uint32_t batch = args.on_outputs ? shape.outputs : shape.rows;
    // Blocks that share a tile of weights run side by side, so that it comes from memory once.
    const uint32_t slices = (batch + BATCH - 1) / BATCH, slice = blockIdx.x % slices, tile = blockIdx.x / slices;
    const int index = args.count > 2 && tile >= args.segments[2].first_tile   ? 2
                      : args.count > 1 && tile >= args.segments[1].first_tile ? 1
                                                                              : 0;
    const Segment &segment = args.segments[index];
    const Matrix &m = segment.matrix;
    const uint32_t first = ((tile - segment.first_tile) * WARPS + threadIdx.x / WARP) * ROWS;
    if (first >= m.rows) return;
    uint32_t weight[ROWS], row[BATCH];
#pragma unroll
    for (int r = 0; r < ROWS; r++) weight[r] = min(first + r, m.rows - 1);
#pragma unroll
    for (int n = 0; n < BATCH; n++) row[n] = min(slice * BATCH + n, batch - 1);
    float sum[ROWS][BATCH] = {};
    switch (m.dtype) {
        case F32: dot_floats<F32, BATCH>(args, m, weight, row, sum); break;
        case F16: dot_floats<F16, BATCH>(args, m, weight, row, sum); break;
        case BF16: dot_floats<BF16, BATCH>(args, m, weight, row, sum); break;
        case Q8_0: dot_quantized<Q8_0, BATCH>(args, m, weight, row, sum); break;
        case Q4_K: dot_quantized<Q4_K, BATCH>(args, m, weight, row, sum); break;
        case Q5_K: dot_quantized<Q5_K, BATCH>(args, m, weight, row, sum); break;
        default: dot_quantized<Q6_K, BATCH>(args, m, weight, row, sum); break;
    }
    // Lane n * ROWS + r keeps the output of weight row r and batch row n.
    float mine = 0.0f;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float total = warp_sum(sum[r][n]);
            if (lane == n * ROWS + r) mine = total;
        }
    }
    const uint32_t out_row = slice * BATCH + lane / ROWS, out_col = first + lane % ROWS;
    if (lane >= BATCH * ROWS || out_row >= batch || out_col >= m.rows) return;
    float *out = segment.out + (size_t)out_row * m.rows + out_col;
    if (segment.bias != nullptr) mine = __fadd_rn(mine, segment.bias[out_col]);
    *out = segment.adds ? __fadd_rn(*out, mine) : mine;
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matmul_1(const __grid_constant__ MatmulArgs args, Shape shape) {
    multiply<1>(args, shape);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matmul_2(const __grid_constant__ MatmulArgs args, Shape shape) {
    multiply<2>(args, shape);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 2) matmul_4(const __grid_constant__ MatmulArgs args, Shape shape) {
    multiply<4>(args, shape);
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, 1) matmul_8(const __grid_constant__ MatmulArgs args, Shape shape) {
    multiply<8>(args, shape);
}
