// The quantiser of each instruction set; use activations.h, which picks one. Declarations only: files compiled for an
// instruction set include this.
#pragma once

#include "activations.h"

namespace paceline {

void quantise_groups_portable(const float *x, std::size_t num_groups, ActivationGroup *out);
void quantise_groups_avx2(const float *x, std::size_t num_groups, ActivationGroup *out);
void quantise_groups_avx512(const float *x, std::size_t num_groups, ActivationGroup *out);

// Biased exponents of the scale: outside, 1.5 * 2^23 * scale or 1 / scale would leave float's normal range.
inline constexpr std::int32_t min_scale_exponent = 27, max_scale_exponent = 227;

// A magnitude's bits plus this carry into the exponent exactly where it is above 127/128 of a power of two: there the
// group needs the next larger scale, as 128 is no int8.
inline constexpr std::int32_t round_up_above_127 = 0x1ffff;

inline constexpr std::int32_t magic_mantissa = 0x400000;  // 1.5
inline constexpr std::int32_t nan_bits = 0x7fc00000;

}  // namespace paceline
