// Rows of activations as int8, in groups of 32: what every linear kernel reads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

inline constexpr std::size_t group_inputs = 32;

// A float whose last bit weighs 1, with 2^22 to either side of it that have the same exponent.
inline constexpr float magic = 12582912.0f;
inline constexpr std::int32_t magic_bits = 0x4b400000;

// 32 consecutive values of a row: value i stands for scale * q[i], |q[i]| <= 127.
//
// The scale is that of the group's largest magnitude, its last two mantissa bits zero. Kernels add integer products to
// the bits of `magic`: the accumulator, read as a float, is then magic + sum of products, exactly, while the sum is below
// 2^22. magic * scale is exact too, for its lack of bits, so one fused multiplication with `scale` less `scaled_magic`
// gives the sum times the scale, rounded once, and no conversion is needed.
//
// Weights are unsigned in the kernels, those of formats with an offset scaled so that it is 128; `start32` and
// `start16` begin the accumulators at magic less the offset's share.
//
// One cache line, so that a kernel needs one pointer a row. A group that holds a NaN, an infinity or a magnitude above
// 127 * 2^100 has NaN for scale, scaled_magic and sum, and makes NaN of every result.
struct alignas(64) ActivationGroup {
    std::int8_t q[group_inputs];
    float scale;
    float scaled_magic;       // magic * scale
    float sum;                // scale * (q[0] + .. + q[31])
    std::int32_t start32;     // bits of magic, less 128 * (q[0] + .. + q[31])
    std::int32_t start16[2];  // the same for q[0..15] and for q[16..31]
    // Of the same halves, -32 * (q[4 j] + q[4 j + 1]) summed over j, and -32 * (q[4 j + 2] + q[4 j + 3]): what sums of
    // 16 bits begin at that add products with 6-bit weights, offset by 32, in pairs.
    std::int16_t start_pairs[2][2];
};
static_assert(sizeof(ActivationGroup) == 64);

// Groups that a row of `num_inputs` (a multiple of 32) takes: an even number, the last one zeros where it is padding.
constexpr std::size_t row_groups(std::size_t num_inputs) { return (num_inputs + 63) / 64 * 2; }

// Quantises a whole row of `num_inputs` values, padding included. `out` has row_groups(num_inputs) groups.
void quantise_row(const float *x, std::size_t num_inputs, ActivationGroup *out);

// Quantises `num_groups` groups of a row (32 * num_groups values). A group's bits depend on its own 32 values alone,
// not on the instruction set, so an operator may quantise its part of a row while that is in cache; whoever does must
// see to the row's padding group (`zero_padding`).
void quantise_groups(const float *x, std::size_t num_groups, ActivationGroup *out);

// Writes the padding group of a row, where it has one.
void zero_padding(std::size_t num_inputs, ActivationGroup *row);

}  // namespace paceline
