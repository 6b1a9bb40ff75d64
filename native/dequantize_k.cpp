// Blocks of 256 values: K-quants.
#include "block_reading.h"
#include "dequantize_blocks.h"

namespace paceline::blocks {

using std::size_t;
using std::uint8_t;

// Sixteen bytes with 4-bit scales and minimums; 2 x 32 bytes of 2-bit values, four groups of 32 in each; d, dmin: half.
void decode_q2_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 84, out += 256) {
        const float d = read_half(in + 80), dmin = read_half(in + 82);
        for (int sixteen = 0; sixteen < 16; ++sixteen) {
            const float scale = d * static_cast<float>(in[sixteen] & 15);
            const float minimum = dmin * static_cast<float>(in[sixteen] >> 4);
            const int group = sixteen / 2;
            const uint8_t *bytes = in + 16 + 32 * (group / 4) + 16 * (sixteen % 2);
            const int shift = 2 * (group % 4);
            for (int j = 0; j < 16; ++j)
                out[16 * sixteen + j] = scale * static_cast<float>(bytes[j] >> shift & 3) - minimum;
        }
    }
}

// 32 bytes of third bits, 64 of 2-bit values, sixteen 6-bit scales in 12 bytes, d: half.
void decode_q3_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 110, out += 256) {
        const float d = read_half(in + 108);
        for (int sixteen = 0; sixteen < 16; ++sixteen) {
            const float scale = d * static_cast<float>(read_q3_k_scale(in + 96, sixteen));
            for (int i = 16 * sixteen; i < 16 * sixteen + 16; ++i)
                out[i] = scale * static_cast<float>(read_q3_k_value(in, in + 32, i));
        }
    }
}

// d, dmin: half; eight 6-bit scales and minimums in 12 bytes; 4 x (32 low nibbles, then the 32 high ones).
void decode_q4_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 144, out += 256) {
        const float d = read_half(in), dmin = read_half(in + 2);
        for (int group = 0; group < 8; ++group) {
            const auto [scale, minimum] = read_scale_and_minimum(in + 4, group);
            const float group_d = d * static_cast<float>(scale), group_m = dmin * static_cast<float>(minimum);
            const uint8_t *bytes = in + 16 + 32 * (group / 2);
            const int shift = 4 * (group % 2);
            for (int j = 0; j < 32; ++j)
                out[32 * group + j] = group_d * static_cast<float>((bytes[j] >> shift) & 15) - group_m;
        }
    }
}

// As Q4_K, with 32 bytes before the nibbles: bit `group` of byte j is the fifth bit of the group's value j.
void decode_q5_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 176, out += 256) {
        const float d = read_half(in), dmin = read_half(in + 2);
        const uint8_t *fifth_bits = in + 16;
        for (int group = 0; group < 8; ++group) {
            const auto [scale, minimum] = read_scale_and_minimum(in + 4, group);
            const float group_d = d * static_cast<float>(scale), group_m = dmin * static_cast<float>(minimum);
            const uint8_t *bytes = in + 48 + 32 * (group / 2);
            const int shift = 4 * (group % 2);
            for (int j = 0; j < 32; ++j) {
                const int value = (bytes[j] >> shift & 15) | (fifth_bits[j] >> group & 1) << 4;
                out[32 * group + j] = group_d * static_cast<float>(value) - group_m;
            }
        }
    }
}

// 128 low nibbles, 64 bytes of 2-bit tops, sixteen signed scales, d: half; each value less 32.
void decode_q6_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 210, out += 256) {
        const float d = read_half(in + 208);
        for (int group = 0; group < 8; ++group) {
            const uint8_t *low = in + 64 * (group / 4) + 32 * (group % 2);
            const uint8_t *high = in + 128 + 32 * (group / 4);
            const int low_shift = 4 * (group % 4 / 2), high_shift = 2 * (group % 4);
            for (int half = 0; half < 2; ++half) {
                const auto scale = static_cast<std::int8_t>(in[192 + 2 * group + half]);
                const float scaled = d * static_cast<float>(scale);
                for (int j = 16 * half; j < 16 * half + 16; ++j) {
                    const int value = ((low[j] >> low_shift) & 15) | (((high[j] >> high_shift) & 3) << 4);
                    out[32 * group + j] = scaled * static_cast<float>(value - 32);
                }
            }
        }
    }
}

}  // namespace paceline::blocks
