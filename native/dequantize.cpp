#include "dequantize.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "block_reading.h"
#include "dequantize_blocks.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint32_t;
using std::uint8_t;

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
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

// d, m: half; 32 fifth bits; nibbles as in Q4_0 without an offset.
void decode_q5_1(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 24, out += 32) {
        const float d = read_half(in), m = read_half(in + 2);
        const uint32_t high = read_u32(in + 4);
        const uint8_t *quants = in + 8;
        for (unsigned j = 0; j < 16; ++j) {
            out[j] = d * static_cast<float>((quants[j] & 15u) | (high >> j & 1u) << 4) + m;
            out[j + 16] = d * static_cast<float>(quants[j] >> 4 | (high >> (j + 16) & 1u) << 4) + m;
        }
    }
}

// d: half; nibbles as in Q4_0, each the index of a value.
void decode_iq4_nl(const uint8_t *in, float *out, size_t n) {
    for (; n; --n, in += 18, out += 32) {
        const float d = read_half(in);
        for (int j = 0; j < 16; ++j) {
            out[j] = d * static_cast<float>(iq4_nl_values[in[2 + j] & 15]);
            out[j + 16] = d * static_cast<float>(iq4_nl_values[in[2 + j] >> 4]);
        }
    }
}

const BlockFormat formats[] = {
    {"F32", 1, 4, decode_f32},
    {"F16", 1, 2, decode_f16},
    {"BF16", 1, 2, decode_bf16},
    {"Q8_0", 32, 34, decode_q8_0},
    {"Q4_0", 32, 18, decode_q4_0},
    {"Q4_1", 32, 20, decode_q4_1},
    {"Q5_0", 32, 22, decode_q5_0},
    {"Q5_1", 32, 24, decode_q5_1},
    {"IQ4_NL", 32, 18, decode_iq4_nl},
    {"Q2_K", 256, 84, blocks::decode_q2_k},
    {"Q3_K", 256, 110, blocks::decode_q3_k},
    {"Q4_K", 256, 144, blocks::decode_q4_k},
    {"Q5_K", 256, 176, blocks::decode_q5_k},
    {"Q6_K", 256, 210, blocks::decode_q6_k},
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
