// The quantiser of each instruction set; use activations.h, which picks one. Functions here are static: files compiled for an
// instruction set include this.
#pragma once

#include "activations.h"

namespace paceline {

void quantise_groups_portable(const float *x, std::size_t num_groups, ActivationGroup *out);
void quantise_groups_avx2(const float *x, std::size_t num_groups, ActivationGroup *out);
void quantise_groups_avx512(const float *x, std::size_t num_groups, ActivationGroup *out);

// Bits of the largest magnitude that a group may have: above, magic * scale would come near float's end. Below the
// smallest, the scale is that of the smallest, so that 1 / scale is a normal number.
inline constexpr std::int32_t largest_magnitude = 0x74fe0000;  // 127 * 2^100
inline constexpr std::int32_t smallest_magnitude = 0x10fe0000;  // 127 * 2^-100

// The scale of a group by the bits of its largest magnitude. Rounded upwards, so that no value is beyond 127 scales by
// more than its rounding.
static inline float scale_of(std::int32_t magnitude) {
    float value;
    if (magnitude < smallest_magnitude) magnitude = smallest_magnitude;
    __builtin_memcpy(&value, &magnitude, sizeof value);
    value *= 1.0f / 127;
    std::int32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits = (bits + 3) & ~3;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// Writes what follows from a group's scale and the sums of its halves; all but `start_pairs`.
static inline void finish_group(float scale, std::int32_t low_sum, std::int32_t high_sum, ActivationGroup *out) {
    out->scale = scale;
    out->scaled_magic = magic * scale;
    out->sum = scale * static_cast<float>(low_sum + high_sum);
    out->start32 = magic_bits - 128 * (low_sum + high_sum);
    out->start16[0] = magic_bits - 128 * low_sum;
    out->start16[1] = magic_bits - 128 * high_sum;
}

inline constexpr std::int32_t nan_bits = 0x7fc00000;

}  // namespace paceline
