// The arithmetic of drawing a token, that of src/sample operation by operation: nothing may be fused or reordered, so
// that both give the same token.
#pragma once
#include "device.cuh"

// What changes an output's logits before they are candidates: adjustments, a mask.
constexpr uint32_t ADJUSTED = 1, MASKED = 2;

// How the token of an output is drawn. The host computes what does not depend on the logits.
struct Draw {
    unsigned long long seed, position;
    double least;                       // lowest logit - highest logit that min_p keeps
    float temperature;                  // 0 takes the highest logit
    float top_p, typical_p;             // 1 is off
    float repeat, frequency, presence;  // penalties
    uint32_t top_k;                     // 0 is off
    uint32_t changes;                   // ADJUSTED, MASKED
};
static_assert(sizeof(Draw) == 56, "as in args.rs");

// What happens to a token's logit before it is a candidate: a bias, or the penalties for `count` occurrences.
struct Adjustment {
    uint32_t token, count;
    float bias;
};
static_assert(sizeof(Adjustment) == 12, "as in args.rs");

__device__ __forceinline__ double bits_as_double(unsigned long long bits) {
    return __longlong_as_double((long long)bits);
}
__device__ __forceinline__ unsigned long long double_as_bits(double value) {
    return (unsigned long long)__double_as_longlong(value);
}

// ln 2 in two parts.
__device__ __forceinline__ double ln2_high() { return bits_as_double(0x3fe62e42fe000000ull); }
__device__ __forceinline__ double ln2_low() { return bits_as_double(0x3e1f473de6af278full); }

template <int COUNT>
__device__ __forceinline__ double horner(const double (&terms)[COUNT], double x) {
    double sum = terms[0];
#pragma unroll
    for (int i = 1; i < COUNT; i++) sum = __dadd_rn(__dmul_rn(sum, x), terms[i]);
    return sum;
}

// e^x for x at most zero.
__device__ __forceinline__ double exponential(double x) {
    const double terms[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
        1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0};
    const double round = 6755399441055744.0;
    const double shifted = __dadd_rn(__dmul_rn(x, bits_as_double(0x3ff71547652b82feull)), round),
                 k = __dsub_rn(shifted, round);
    const double r = __dsub_rn(__dsub_rn(x, __dmul_rn(k, ln2_high())), __dmul_rn(k, ln2_low()));
    const double tail = horner(terms, r);
    const double value = __dadd_rn(1.0, __dadd_rn(r, __dmul_rn(__dmul_rn(r, r), tail)));
    return x < -708.0 ? 0.0 : bits_as_double(double_as_bits(value) + (double_as_bits(shifted) << 52));
}

// The natural logarithm of a positive normal number.
__device__ __forceinline__ double logarithm(double x) {
    const double terms[] = {1.0 / 23.0, 1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0,
        1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0};
    const long long exponent = (long long)(double_as_bits(x) - 0x3fe6a09e667f3bcdull) >> 52;
    const double k = (double)exponent;
    const double f = __dsub_rn(bits_as_double(double_as_bits(x) - ((unsigned long long)exponent << 52)), 1.0);
    const double s = __ddiv_rn(f, __dadd_rn(2.0, f)), z = __dmul_rn(s, s);
    const double tail = horner(terms, z), twice = __dadd_rn(s, s);
    const double rest = __dadd_rn(__dmul_rn(twice, __dmul_rn(z, tail)), __dmul_rn(k, ln2_low()));
    return __dadd_rn(__dmul_rn(k, ln2_high()), __dadd_rn(twice, rest));
}

// A number from 0 to 1 in units of 2^-40, rounded to nearest.
__device__ __forceinline__ unsigned long long units(double value) {
    const double to_integer = 4503599627370496.0;
    return double_as_bits(__dadd_rn(__dmul_rn(value, 1099511627776.0), to_integer)) - double_as_bits(to_integer);
}

// The mass that reaches `share` of the total: at least 1, at most the total.
__device__ __forceinline__ unsigned long long target_mass(unsigned long long total, float share) {
    const double mass = ceil(__dmul_rn((double)share, __ull2double_rn(total)));
    return min(max((unsigned long long)mass, 1ull), total);
}

// Logit minus the highest one.
__device__ __forceinline__ double below(float logit, float top) { return __dsub_rn((double)logit, (double)top); }

// Bits that ascend with a number that is not negative; minus zero counts as zero.
__device__ __forceinline__ unsigned long long rank_bits(double rank) { return double_as_bits(__dadd_rn(rank, 0.0)); }

// The 52 random bits of a token at a position: Philox4x32-10.
__device__ __forceinline__ unsigned long long uniform_bits(const Draw &draw, uint32_t token) {
    uint32_t c0 = token, c1 = 0, c2 = (uint32_t)draw.position, c3 = (uint32_t)(draw.position >> 32);
    uint32_t k0 = (uint32_t)draw.seed, k1 = (uint32_t)(draw.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t even_high = __umulhi(c0, 0xd2511f53u), even_low = c0 * 0xd2511f53u;
        const uint32_t odd_high = __umulhi(c2, 0xcd9e8d57u), odd_low = c2 * 0xcd9e8d57u;
        c0 = odd_high ^ c1 ^ k0, c1 = odd_low, c2 = even_high ^ c3 ^ k1, c3 = even_low;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    return (unsigned long long)c0 << 20 | c1 >> 12;
}

__device__ __forceinline__ double gumbel(unsigned long long bits) {
    const double uniform = __dmul_rn((double)(2 * bits + 1), 1.0 / 9007199254740992.0);
    double value = uniform;
    // One stretch of code for both.
#pragma unroll 1
    for (int i = 0; i < 2; i++) value = -logarithm(value);
    return value;
}

// Larger for a larger score; never 0.
__device__ __forceinline__ unsigned long long score_key(const Draw &draw, float logit, uint32_t token) {
    const double scaled = __ddiv_rn((double)logit, (double)draw.temperature);
    // Adding zero turns minus zero into zero.
    const unsigned long long bits =
        double_as_bits(__dadd_rn(__dadd_rn(scaled, gumbel(uniform_bits(draw, token))), 0.0));
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}
