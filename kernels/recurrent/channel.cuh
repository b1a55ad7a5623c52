// A column of a causal convolution: what a row sees of the rows before it, in the pass or kept from before, and what
// the next pass sees of this one.
#pragma once
#include "quant/activation.cuh"
#include "recurrent/stretch.cuh"

constexpr int MOST_TAPS = 16;

// The convolution of a value.
struct Convolution {
    const float *x;
    const float *weight;  // a row for each tap, the oldest first
    const float *bias;    // null for none
    uint64_t state;       // first element in a record: the last rows of `x`, one fewer than taps, the oldest first
};

// One thread's column of one row, where there are TAPS taps at most.
template <int TAPS>
struct Channel {
    const Convolution *own;
    uint32_t width, col, row, index, taps;  // `index` counts the rows of the stretch
    bool is_inside;
    float weight[TAPS], seen[TAPS], bias;

    // The last taps are rows of the pass, those before them were kept.
    __device__ __forceinline__ bool is_kept(uint32_t tap) const { return index + tap + 1 < taps; }

    // Reads what earlier steps left, which is there before the kernel's wait.
    __device__ __forceinline__ Channel(const Convolution &own, const Records &records, const Stretch &stretch,
        uint32_t width, uint32_t col, uint32_t row, uint32_t taps, bool is_inside)
        : own(&own), width(width), col(col), row(row), index(row - stretch.first), taps(taps), is_inside(is_inside) {
        const float *kept = stretch.from == NONE ? nullptr : record_at(records, stretch.from, own.state) + col;
#pragma unroll
        for (uint32_t tap = 0; tap < TAPS; tap++) {
            const bool is_wanted = is_inside && tap < taps;
            weight[tap] = is_wanted ? own.weight[(size_t)tap * width + col] : 0.0f;
            seen[tap] = is_wanted && kept != nullptr && is_kept(tap) ? kept[(size_t)(index + tap) * width] : 0.0f;
        }
        bias = is_inside && own.bias != nullptr ? own.bias[col] : 0.0f;
    }

    // The result, behind the wait.
    __device__ __forceinline__ float result() {
        const float *x = own->x + (size_t)row * width + col;
#pragma unroll
        for (uint32_t tap = 0; tap < TAPS; tap++) {
            if (is_inside && tap < taps && !is_kept(tap)) seen[tap] = *(x - (size_t)(taps - 1 - tap) * width);
        }
        return sum();
    }

    // That of the next row of the stretch, whose own element is `x`.
    __device__ __forceinline__ float next_result(float x) {
        row++, index++;
#pragma unroll
        for (uint32_t tap = 0; tap < TAPS; tap++) {
            if (tap + 1 < TAPS && tap + 1 < taps) seen[tap] = seen[tap + 1];
            else if (tap + 1 == taps) seen[tap] = x;
        }
        return sum();
    }

    __device__ __forceinline__ float sum() const {
        float v = bias;
#pragma unroll
        for (uint32_t tap = 0; tap < TAPS; tap++) {
            if (is_inside && tap < taps) v = __fmaf_rn(seen[tap], weight[tap], v);
        }
        return v;
    }

    // Leaves the rows that the next one sees: of the last row in a stretch.
    __device__ __forceinline__ void keep(const Records &records, const Stretch &stretch) const {
        float *to = record_at(records, stretch.to, own->state) + col;
        float *before = stretch.before == NONE ? nullptr : record_at(records, stretch.before, own->state) + col;
#pragma unroll
        for (uint32_t tap = 0; tap + 1 < TAPS; tap++) {
            if (tap + 1 >= taps) break;
            to[(size_t)tap * width] = seen[tap + 1];
            if (before != nullptr) before[(size_t)tap * width] = seen[tap];
        }
    }
};

// What the elements of a head are multiplied by, of the squares of its warps in their order.
__device__ __forceinline__ float head_factor(const float *shares, uint32_t warps, uint32_t head_dim, float eps) {
    float squares = 0.0f;
    for (uint32_t i = 0; i < warps; i++) squares = __fadd_rn(squares, shares[i]);
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)head_dim), eps)));
}
