// Sixteen floats, eight doubles or eight 64-bit words at a time, in the compiler's own vector types: any machine.
//
// The three simd_*.h files offer the same names, so that a kernel is written once and compiled for each instruction set
// (*_kernels.inl in *_portable.cpp, *_avx2.cpp, *_avx512.cpp). All is in an unnamed namespace: code made for one set
// must never be linked into another's. Sums run in one order everywhere; only `fma` rounds twice here and once there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.h"

#define PACELINE_INLINE static inline __attribute__((always_inline))

namespace paceline {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef std::int64_t Longs __attribute__((vector_size(64)));
typedef std::uint64_t Words __attribute__((vector_size(64)));
typedef std::uint16_t Halves __attribute__((vector_size(32)));
typedef float EightFloats __attribute__((vector_size(32)));

// How many queries and vectors of keys or values the attention kernels work on at once. Many queries, since each
// reading of halves is dear here.
constexpr int tile_queries = 6, tile_vectors = 1;

PACELINE_INLINE Floats all(float x) { return x - Floats{}; }
PACELINE_INLINE Floats load(const float *p) {
    Floats x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
PACELINE_INLINE Floats load_first(const float *p, int n) {
    Floats x{};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return x;
}
PACELINE_INLINE void store(float *p, Floats x) { std::memcpy(p, &x, sizeof x); }
PACELINE_INLINE void store_first(float *p, Floats x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x[i];
}
// float_of_half of half.h, lane by lane.
PACELINE_INLINE Floats load_half(const std::uint16_t *p) {
    Halves halves;
    std::memcpy(&halves, p, sizeof halves);
    const Ints bits = __builtin_convertvector(halves, Ints), magnitude = (bits & 0x7fff) << 13;
    Floats x;
    std::memcpy(&x, &magnitude, sizeof x);
    x *= 5192296858534827628530496329220096.0f;  // 2^112
    Ints result;
    std::memcpy(&result, &x, sizeof result);
    const Ints is_special = magnitude >= 0x7c00 << 13, is_nan = magnitude > 0x7c00 << 13;
    result |= is_special & (0x7f800000 | (is_nan & 0x400000));
    result |= (bits & 0x8000) << 16;
    std::memcpy(&x, &result, sizeof x);
    return x;
}
PACELINE_INLINE Floats load_eight_halves(const std::uint16_t *p) {
    std::uint16_t padded[16] = {};
    std::memcpy(padded, p, 8 * sizeof *p);
    return load_half(padded);
}
PACELINE_INLINE void store_half(std::uint16_t *p, Floats x) {
    for (int i = 0; i < 16; ++i) p[i] = half_of_float(x[i]);
}

PACELINE_INLINE Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
// b where either is not a number.
PACELINE_INLINE Floats maximum(Floats a, Floats b) { return a > b ? a : b; }
PACELINE_INLINE Floats minimum(Floats a, Floats b) { return a < b ? a : b; }
// Adding and taking away 1.5 * 2^23 leaves the nearest whole number, for magnitudes below 2^22.
PACELINE_INLINE Floats round_to_whole(Floats x) { return (x + 12582912.0f) - 12582912.0f; }
// x * 2^n; n whole, -126 .. 127.
PACELINE_INLINE Floats times_power_of_two(Floats x, Floats n) {
    const Ints bits = (__builtin_convertvector(n, Ints) + 127) << 23;
    Floats power;
    std::memcpy(&power, &bits, sizeof power);
    return x * power;
}
PACELINE_INLINE Floats zero_where_less(Floats x, Floats a, Floats b) { return a < b ? Floats{} : x; }
// x in lanes first .. end - 1, `otherwise` in the others.
PACELINE_INLINE Floats keep_lanes(Floats x, int first, int end, float otherwise) {
    for (int i = 0; i < 16; ++i)
        if (i < first || i >= end) x[i] = otherwise;
    return x;
}
PACELINE_INLINE float sum(Floats x) {
    float a[8], b[4];
    for (int i = 0; i < 8; ++i) a[i] = x[i] + x[i + 8];
    for (int i = 0; i < 4; ++i) b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}
PACELINE_INLINE float greatest(Floats x) {
    float a = x[0];
    for (int i = 1; i < 16; ++i) a = x[i] > a ? x[i] : a;
    return a;
}
// One bit a lane, the first lane's lowest; not set where either is not a number.
PACELINE_INLINE unsigned lanes_greater(Floats a, Floats b) {
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) bits |= static_cast<unsigned>(a[i] > b[i]) << i;
    return bits;
}
PACELINE_INLINE unsigned lanes_nan(Floats a) {
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) bits |= static_cast<unsigned>(a[i] != a[i]) << i;
    return bits;
}

PACELINE_INLINE Doubles all_doubles(double x) { return x - Doubles{}; }
PACELINE_INLINE Doubles load_doubles(const double *p) {
    Doubles x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
PACELINE_INLINE Doubles load_doubles(const float *p) {
    EightFloats x;
    std::memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, Doubles);
}
PACELINE_INLINE void store_doubles(double *p, Doubles x) { std::memcpy(p, &x, sizeof x); }
PACELINE_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) { return a * b + c; }
PACELINE_INLINE Doubles maximum(Doubles a, Doubles b) { return a > b ? a : b; }
PACELINE_INLINE Doubles round_to_whole(Doubles x) { return (x + 6755399441055744.0) - 6755399441055744.0; }
// x * 2^n; n whole, -1022 .. 1023.
PACELINE_INLINE Doubles times_power_of_two(Doubles x, Doubles n) {
    const Longs bits = (__builtin_convertvector(n, Longs) + 1023) << 52;
    Doubles power;
    std::memcpy(&power, &bits, sizeof power);
    return x * power;
}
PACELINE_INLINE Doubles zero_where_less(Doubles x, Doubles a, Doubles b) { return a < b ? Doubles{} : x; }
PACELINE_INLINE double sum(Doubles x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }
PACELINE_INLINE unsigned lanes_not_less(Doubles a, Doubles b) {
    unsigned bits = 0;
    for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>(a[i] >= b[i]) << i;
    return bits;
}

PACELINE_INLINE Words all_words(std::uint64_t x) { return x - Words{}; }
PACELINE_INLINE Words counting_from(std::uint64_t x) { return x + Words{0, 1, 2, 3, 4, 5, 6, 7}; }
// The low halves of both, multiplied.
PACELINE_INLINE Words times_low(Words a, Words b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
PACELINE_INLINE Words high_half(Words a) { return a >> 32; }
PACELINE_INLINE Words exclusive_or(Words a, Words b, Words c) { return a ^ b ^ c; }
// (2^32 - 1 - low half) / 2, rounded down, of the lanes of `a`, then those of `b`.
PACELINE_INLINE Floats complement_of_low(Words a, Words b) {
    Ints x{};
    for (int i = 0; i < 8; ++i) {
        x[i] = static_cast<std::int32_t>(~static_cast<std::uint32_t>(a[i]) >> 1);
        x[i + 8] = static_cast<std::int32_t>(~static_cast<std::uint32_t>(b[i]) >> 1);
    }
    return __builtin_convertvector(x, Floats);
}

}  // namespace
}  // namespace paceline
