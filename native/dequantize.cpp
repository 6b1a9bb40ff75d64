#include "dequantize.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Files are little-endian; reading bytes one by one needs neither alignment nor a little-endian machine.
uint32_t read_u16(const uint8_t *p) { return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8; }

uint32_t read_u32(const uint8_t *p) {
    return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
           static_cast<uint32_t>(p[3]) << 24;
}

// IEEE 754 binary16; subnormal halves become exact floats by a multiplication with 2^-24.
float read_half(const uint8_t *p) {
    const uint32_t half = read_u16(p);
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
        return sign ? -magnitude : magnitude;
    }
    const uint32_t float_exponent = exponent == 0x1fu ? 0xffu : exponent + 112u;
    return float_of_bits(sign | float_exponent << 23 | mantissa << 13);
}

void decode_f32(const uint8_t *in, float *out, size_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    std::memcpy(out, in, 4 * n);
#else
    for (size_t i = 0; i < n; ++i) out[i] = float_of_bits(read_u32(in + 4 * i));
#endif
}

void decode_f16(const uint8_t *in, float *out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = read_half(in + 2 * i);
}

void decode_bf16(const uint8_t *in, float *out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = float_of_bits(read_u16(in + 2 * i) << 16);
}

// d: half; 32 signed bytes.
void decode_q8_0(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 34, out += 32) {
        const float d = read_half(in);
        for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<std::int8_t>(in[2 + j])) * d;
    }
}

// d: half; 16 bytes, low nibbles are values 0..15 and high nibbles values 16..31, each less 8.
void decode_q4_0(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 18, out += 32) {
        const float d = read_half(in);
        for (int j = 0; j < 16; ++j) {
            out[j] = d * static_cast<float>((in[2 + j] & 15) - 8);
            out[j + 16] = d * static_cast<float>((in[2 + j] >> 4) - 8);
        }
    }
}

// d, m: half; nibbles as in Q4_0 without an offset.
void decode_q4_1(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 20, out += 32) {
        const float d = read_half(in), m = read_half(in + 2);
        for (int j = 0; j < 16; ++j) {
            out[j] = d * static_cast<float>(in[4 + j] & 15) + m;
            out[j + 16] = d * static_cast<float>(in[4 + j] >> 4) + m;
        }
    }
}

// d: half; 32 fifth bits; nibbles as in Q4_0; less 16.
void decode_q5_0(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 22, out += 32) {
        const float d = read_half(in);
        const uint32_t high = read_u32(in + 2);
        const uint8_t *quants = in + 6;
        for (unsigned j = 0; j < 16; ++j) {
            const int low_value = static_cast<int>((quants[j] & 15u) | ((high >> j & 1u) << 4)) - 16;
            const int high_value = static_cast<int>((quants[j] >> 4) | ((high >> (j + 16) & 1u) << 4)) - 16;
            out[j] = d * static_cast<float>(low_value);
            out[j + 16] = d * static_cast<float>(high_value);
        }
    }
}

// d, dmin: half; eight 6-bit scales and minimums in 12 bytes; 4 x (32 low nibbles, then the 32 high ones).
void decode_q4_k(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 144, out += 256) {
        const float d = read_half(in), dmin = read_half(in + 2);
        const uint8_t *scales = in + 4, *quants = in + 16;
        for (int group = 0; group < 8; ++group) {
            int scale, minimum;
            if (group < 4) {
                scale = scales[group] & 63;
                minimum = scales[group + 4] & 63;
            } else {
                scale = (scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4);
                minimum = (scales[group + 4] >> 4) | (scales[group] >> 6 << 4);
            }
            const float group_d = d * static_cast<float>(scale), group_m = dmin * static_cast<float>(minimum);
            const uint8_t *bytes = quants + 32 * (group / 2);
            const int shift = 4 * (group % 2);
            for (int j = 0; j < 32; ++j)
                out[32 * group + j] = group_d * static_cast<float>((bytes[j] >> shift) & 15) - group_m;
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

const BlockFormat formats[] = {
    {"F32", 1, 4, decode_f32},     {"F16", 1, 2, decode_f16},       {"BF16", 1, 2, decode_bf16},
    {"Q8_0", 32, 34, decode_q8_0}, {"Q4_0", 32, 18, decode_q4_0},   {"Q4_1", 32, 20, decode_q4_1},
    {"Q5_0", 32, 22, decode_q5_0}, {"Q4_K", 256, 144, decode_q4_k}, {"Q6_K", 256, 210, decode_q6_k},
};

// Below this many values, starting a thread costs more than it brings.
constexpr size_t min_values_per_thread = 1u << 18;

}  // namespace

const BlockFormat *find_block_format(const std::string &name) {
    for (const BlockFormat &format : formats)
        if (name == format.name) return &format;
    return nullptr;
}

void dequantize(const BlockFormat &format, const uint8_t *blocks, float *out, size_t num_blocks,
                unsigned num_threads) {
    const size_t useful = std::max<size_t>(1, num_blocks * format.elements / min_values_per_thread);
    const size_t parts = std::min<size_t>(std::max(1u, num_threads), useful);
    auto decode_part = [&](size_t part) {
        const size_t begin = num_blocks * part / parts, end = num_blocks * (part + 1) / parts;
        format.decode(blocks + begin * format.bytes, out + begin * format.elements, end - begin);
    };
    std::vector<std::thread> threads;
    for (size_t part = 1; part < parts; ++part) threads.emplace_back(decode_part, part);
    decode_part(0);
    for (std::thread &thread : threads) thread.join();
}

}  // namespace paceline
