#include "requantise.h"

#include <cmath>
#include <stdexcept>

#include "half.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint8_t;

uint8_t *put_half(uint8_t *out, float value) {
    const std::uint16_t bits = half_of_float(value);
    out[0] = static_cast<uint8_t>(bits);
    out[1] = static_cast<uint8_t>(bits >> 8);
    return out + 2;
}

float inverse_of(float value) { return value != 0.0f ? 1.0f / value : 0.0f; }

// A block of 32 in lanes of 8, each with its own sum: so compilers make vectors of loops that they must not reorder.
constexpr int block = 32, lanes = 8;

float add_lanes(const float *sums) {
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// round((x - minimum) * inverse), ties to even, between low and high; in loops of one operation each, which stay free of
// branches.
void quantise(const float *x, float minimum, float inverse, float low, float high, float *q) {
    constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
    for (int i = 0; i < block; ++i) q[i] = (x[i] - minimum) * inverse;
    for (int i = 0; i < block; ++i) q[i] = q[i] > low ? q[i] : low;
    for (int i = 0; i < block; ++i) q[i] = q[i] < high ? q[i] : high;
    for (int i = 0; i < block; ++i) q[i] = (q[i] + rounder) - rounder;
}

float product(const float *a, const float *b) {
    float sums[lanes] = {};
    for (int i = 0; i < block; i += lanes)
        for (int j = 0; j < lanes; ++j) sums[j] += a[i + j] * b[i + j];
    return add_lanes(sums);
}

float squared_error(const float *x, const float *q, float scale, float minimum) {
    float sums[lanes] = {};
    for (int i = 0; i < block; i += lanes)
        for (int j = 0; j < lanes; ++j) {
            const float error = x[i + j] - (scale * q[i + j] + minimum);
            sums[j] += error * error;
        }
    return add_lanes(sums);
}

float round_to_half(float value) { return float_of_half(half_of_float(value)); }

void put_nibbles(uint8_t *out, const float *q, int offset) {
    for (int i = 0; i < 16; ++i)
        out[i] = static_cast<uint8_t>((static_cast<int>(q[i]) + offset) | (static_cast<int>(q[i + 16]) + offset) << 4);
}

void to_q8_0(const float *x, uint8_t *out) {
    float largest = 0, q[block];
    for (int i = 0; i < block; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    const float scale = round_to_half(largest / 127.0f);
    quantise(x, 0, inverse_of(scale), -127, 127, q);
    out = put_half(out, scale);
    for (int i = 0; i < block; ++i) out[i] = static_cast<uint8_t>(static_cast<int>(q[i]));
}

// Tries scales around the one that puts the largest magnitude at -8. With the scale fitted to the integers by least
// squares, the error left is sum x^2 - (sum x q)^2 / sum q^2.
void to_q4_0(const float *x, uint8_t *out) {
    float extreme = 0;
    for (int i = 0; i < block; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
    float best_scale = 0, best_gain = 0, q[block];
    for (int step = -3; extreme != 0 && step <= 3; ++step) {
        quantise(x, 0, (-8.0f + 0.3f * static_cast<float>(step)) / extreme, -8, 7, q);
        const float fit = product(x, q), square = product(q, q);
        if (square > 0 && fit * fit > best_gain * square) {
            best_gain = fit * fit / square;
            best_scale = fit / square;
        }
    }
    best_scale = round_to_half(best_scale);
    quantise(x, 0, inverse_of(best_scale), -8, 7, q);
    put_nibbles(put_half(out, best_scale), q, 8);
}

// Tries cutting the ends off a little: that makes the steps smaller, which pays where few values lie there.
void to_q4_1(const float *x, uint8_t *out) {
    float low = x[0], high = x[0], q[block];
    for (int i = 1; i < block; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float best_scale = 0, best_minimum = round_to_half(low), best_error = INFINITY;
    for (int step = 0; step <= 4; ++step) {
        const float cut = 0.035f * static_cast<float>(step) * (high - low);
        const float minimum = round_to_half(low + cut), scale = round_to_half((high - low - 2 * cut) / 15.0f);
        quantise(x, minimum, inverse_of(scale), 0, 15, q);
        const float error = squared_error(x, q, scale, minimum);
        if (error < best_error) {
            best_error = error;
            best_scale = scale;
            best_minimum = minimum;
        }
    }
    quantise(x, best_minimum, inverse_of(best_scale), 0, 15, q);
    put_nibbles(put_half(put_half(out, best_scale), best_minimum), q, 0);
}

}  // namespace

size_t file_unit_bytes(Format format) {
    switch (format) {
        case Format::q4_k: return 144;
        case Format::q6_k: return 210;
        case Format::q4_0: return 2 * 18;
        case Format::q4_1: return 2 * 20;
        case Format::q5_0: return 2 * 22;
        case Format::q8_0: return 2 * 34;
        case Format::q5_1: return 2 * 24;
        case Format::q5_k: return 176;
    }
    return 0;
}

bool can_requantise_to(Format format) {
    return format == Format::q8_0 || format == Format::q4_0 || format == Format::q4_1;
}

void requantise_row(Format format, const float *x, size_t num_inputs, std::vector<uint8_t> &blocks) {
    if (!can_requantise_to(format))
        throw std::invalid_argument(std::string("cannot re-quantise to ") + layout_of(format).name);
    const size_t bytes = file_unit_bytes(format) / 2;
    blocks.resize(num_inputs / 32 * bytes);
    for (size_t b = 0; b < num_inputs / 32; ++b) {
        uint8_t *out = blocks.data() + b * bytes;
        if (format == Format::q8_0)
            to_q8_0(x + 32 * b, out);
        else if (format == Format::q4_0)
            to_q4_0(x + 32 * b, out);
        else
            to_q4_1(x + 32 * b, out);
    }
}

}  // namespace paceline
