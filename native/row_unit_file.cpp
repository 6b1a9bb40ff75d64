// The file's side: formats as in dequantize.cpp, where each is described.
#include <cstring>

#include "half.h"
#include "row_unit.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint8_t;

uint16_t read_u16(const uint8_t *p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

void read_nibbles(const uint8_t *in, uint8_t *q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = in[i] & 15;
        q[i + 16] = in[i] >> 4;
    }
}

void read_q4_k(const uint8_t *in, RowUnit &out) {
    out.d[0] = read_u16(in);
    out.m[0] = read_u16(in + 2);
    const uint8_t *scales = in + 4, *quants = in + 16;
    for (int g = 0; g < 4; ++g) {
        out.scales[g] = scales[g] & 63;
        out.minimums[g] = scales[g + 4] & 63;
        out.scales[g + 4] = static_cast<uint8_t>((scales[g + 8] & 15) | (scales[g] >> 6 << 4));
        out.minimums[g + 4] = static_cast<uint8_t>((scales[g + 8] >> 4) | (scales[g + 4] >> 6 << 4));
    }
    for (int g = 0; g < 8; ++g) {
        uint8_t q[32];
        for (int i = 0; i < 32; ++i) q[i] = (quants[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
        std::memcpy(out.words[g], q, 32);
    }
}

void read_q6_k(const uint8_t *in, RowUnit &out) {
    out.d[0] = read_u16(in + 208);
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
    return format == Format::q8_0 ? 34 : format == Format::q4_1 ? 20 : format == Format::q5_0 ? 22 : 18;
}

void read_small_block(Format format, const uint8_t *in, size_t group, RowUnit &out) {
    uint8_t q[32];
    out.d[group] = read_u16(in);
    if (format == Format::q8_0) {
        for (int i = 0; i < 32; ++i) q[i] = in[2 + i] ^ 0x80;
    } else if (format == Format::q4_1) {
        out.m[group] = read_u16(in + 2) ^ 0x8000;
        read_nibbles(in + 4, q);
    } else if (format == Format::q5_0) {
        read_nibbles(in + 6, q);
        for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(q[i] | ((in[2 + i / 8] >> (i % 8)) & 1) << 4);
    } else {
        read_nibbles(in + 2, q);
    }
    std::memcpy(out.words[group], q, 32);
}

int offset_of(Format format) {
    return format == Format::q6_k ? 32 : format == Format::q4_0 ? 8 : format == Format::q5_0 ? 16 : 128;
}

}  // namespace

void read_row_unit(Format format, const uint8_t *blocks, size_t num_groups, RowUnit &out) {
    if (format == Format::q4_k) return read_q4_k(blocks, out);
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
            if (format == Format::q4_k) {
                const float d = float_of_half(in.d[0]) * static_cast<float>(in.scales[g]);
                const float m = float_of_half(in.m[0]) * static_cast<float>(in.minimums[g]);
                value = d * static_cast<float>(q) - m;
            } else if (format == Format::q6_k) {
                const auto scale = static_cast<std::int8_t>(in.scales[2 * g + i / 16]);
                value = float_of_half(in.d[0]) * static_cast<float>(scale) * static_cast<float>(q - 32);
            } else if (format == Format::q4_1) {
                value = float_of_half(in.d[g]) * static_cast<float>(q) - float_of_half(in.m[g]);
            } else {
                value = float_of_half(in.d[g]) * static_cast<float>(q - offset_of(format));
            }
        }
}

}  // namespace paceline
