#include <cstring>

#include "cpu.h"
#include "quantise.h"

namespace paceline {
namespace {

using std::int32_t;
using std::size_t;

int32_t bits_of(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float float_of(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

void write_not_finite(ActivationGroup *out) {
    *out = ActivationGroup{};
    out->scale = out->scaled_magic = out->sum = float_of(nan_bits);
}

void quantise_group(const float *x, ActivationGroup *out) {
    int32_t largest = 0;  // bits of magnitudes sort as the magnitudes do, NaN and infinity above all
    for (size_t i = 0; i < group_inputs; ++i) {
        const int32_t magnitude = bits_of(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest > largest_magnitude) return write_not_finite(out);
    const float scale = scale_of(largest), inverse = 1.0f / scale;
    int32_t sums[2] = {0, 0};
    for (size_t half = 0; half < 2; ++half)
        for (size_t i = 16 * half; i < 16 * half + 16; ++i) {
            // Adding it rounds to the nearest integer, ties to even, and leaves that in the lowest bits.
            const int32_t q = bits_of(x[i] * inverse + magic) - magic_bits;
            out->q[i] = static_cast<std::int8_t>(q);
            sums[half] += q;
        }
    finish_group(scale, sums[0], sums[1], out);
    int32_t pairs[2][2] = {};
    for (size_t i = 0; i < group_inputs; ++i) pairs[i / 16][i % 4 / 2] += out->q[i];
    for (size_t i = 0; i < 4; ++i)
        out->start_pairs[i / 2][i % 2] = static_cast<std::int16_t>(-32 * pairs[i / 2][i % 2]);
}

}  // namespace

void quantise_groups_portable(const float *x, size_t num_groups, ActivationGroup *out) {
    for (size_t g = 0; g < num_groups; ++g) quantise_group(x + g * group_inputs, out + g);
}

void quantise_groups(const float *x, size_t num_groups, ActivationGroup *out) {
#if defined(__x86_64__)
    if (cpu::current() == cpu::Isa::avx512_vnni) return quantise_groups_avx512(x, num_groups, out);
    if (cpu::current() != cpu::Isa::portable) return quantise_groups_avx2(x, num_groups, out);
#endif
    quantise_groups_portable(x, num_groups, out);
}

void zero_padding(size_t num_inputs, ActivationGroup *row) {
    const size_t num_groups = num_inputs / group_inputs;
    if (num_groups % 2 == 0) return;
    static const float zeros[group_inputs] = {};
    quantise_groups_portable(zeros, 1, row + num_groups);
}

void quantise_row(const float *x, size_t num_inputs, ActivationGroup *out) {
    quantise_groups(x, num_inputs / group_inputs, out);
    zero_padding(num_inputs, out);
}

}  // namespace paceline
