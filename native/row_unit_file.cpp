// The file's side: formats as in dequantize.cpp, where each is described.
#include <cstring>

#include "block_reading.h"
#include "requantise.h"
#include "row_unit.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint8_t;

uint16_t read_half_bits(const uint8_t *p) { return static_cast<uint16_t>(read_u16(p)); }

void read_nibbles(const uint8_t *in, uint8_t *q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = in[i] & 15;
        q[i + 16] = in[i] >> 4;
    }
}

// Q4_K where `fifth_bits` is null, else Q5_K.
void read_k(const uint8_t *in, const uint8_t *fifth_bits, const uint8_t *quants, RowUnit &out) {
    out.d[0] = read_half_bits(in);
    out.m[0] = read_half_bits(in + 2);
    for (int g = 0; g < 8; ++g) {
        const auto [scale, minimum] = read_scale_and_minimum(in + 4, g);
        out.scales[g] = scale;
        out.minimums[g] = minimum;
        uint8_t q[32];
        for (int i = 0; i < 32; ++i) q[i] = (quants[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
        for (int i = 0; fifth_bits && i < 32; ++i) q[i] = static_cast<uint8_t>(q[i] | (fifth_bits[i] >> g & 1) << 4);
        std::memcpy(out.words[g], q, 32);
    }
}

void read_q6_k(const uint8_t *in, RowUnit &out) {
    out.d[0] = read_half_bits(in + 208);
    std::memcpy(out.scales, in + 192, 16);
    for (int g = 0; g < 8; ++g) {
        const uint8_t *low = in + 64 * (g / 4) + 32 * (g % 2), *high = in + 128 + 32 * (g / 4);
        const int low_shift = 4 * (g % 4 / 2), high_shift = 2 * (g % 4);
        uint8_t q[32];
        for (int i = 0; i < 32; ++i)
            q[i] = static_cast<uint8_t>(((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4));
        std::memcpy(out.words[g], q, 32);
    }
}

size_t small_block_bytes(Format format) {
    return file_unit_bytes(format) / 2;
}

void read_small_block(Format format, const uint8_t *in, size_t group, RowUnit &out) {
    uint8_t q[32];
    out.d[group] = read_half_bits(in);
    if (format == Format::q8_0) {
        for (int i = 0; i < 32; ++i) q[i] = in[2 + i] ^ 0x80;
    } else {
        const uint8_t *quants = in + 2;
        if (has_half_minimums(format)) {
            out.m[group] = read_half_bits(quants) ^ 0x8000;
            quants += 2;
        }
        const uint8_t *fifth_bits = quants;
        if (has_five_bits(format)) quants += 4;
        read_nibbles(quants, q);
        for (int i = 0; has_five_bits(format) && i < 32; ++i)
            q[i] = static_cast<uint8_t>(q[i] | ((fifth_bits[i / 8] >> (i % 8)) & 1) << 4);
    }
    std::memcpy(out.words[group], q, 32);
}

int offset_of(Format format) {
    return format == Format::q6_k ? 32 : format == Format::q4_0 ? 8 : format == Format::q5_0 ? 16 : 128;
}

}  // namespace

void read_row_unit(Format format, const uint8_t *blocks, size_t num_groups, RowUnit &out) {
    if (format == Format::q4_k) return read_k(blocks, nullptr, blocks + 16, out);
    if (format == Format::q5_k) return read_k(blocks, blocks + 16, blocks + 48, out);
    if (format == Format::q6_k) return read_q6_k(blocks, out);
    out = RowUnit{};
    for (size_t g = 0; g < num_groups; ++g) read_small_block(format, blocks + g * small_block_bytes(format), g, out);
}

void dequantize_row_unit(Format format, const RowUnit &in, float *out) {
    const size_t num_groups = layout_of(format).unit_inputs / 32;
    for (size_t g = 0; g < num_groups; ++g)
        for (size_t i = 0; i < 32; ++i) {
            uint8_t q;
            std::memcpy(&q, reinterpret_cast<const uint8_t *>(in.words[g]) + i, 1);
            float &value = out[32 * g + i];
            if (has_k_scales(format)) {
                const float d = float_of_half(in.d[0]) * static_cast<float>(in.scales[g]);
                const float m = float_of_half(in.m[0]) * static_cast<float>(in.minimums[g]);
                value = d * static_cast<float>(q) - m;
            } else if (format == Format::q6_k) {
                const auto scale = static_cast<std::int8_t>(in.scales[2 * g + i / 16]);
                value = float_of_half(in.d[0]) * static_cast<float>(scale) * static_cast<float>(q - 32);
            } else if (has_half_minimums(format)) {
                value = float_of_half(in.d[g]) * static_cast<float>(q) - float_of_half(in.m[g]);
            } else {
                value = float_of_half(in.d[g]) * static_cast<float>(q - offset_of(format));
            }
        }
}

}  // namespace paceline
