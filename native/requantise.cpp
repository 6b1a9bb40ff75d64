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

int clamp_round(float value, int low, int high) {
    const float rounded = std::nearbyint(value);
    return rounded < static_cast<float>(low)    ? low
           : rounded > static_cast<float>(high) ? high
                                                : static_cast<int>(rounded);
}

void put_nibbles(uint8_t *out, const int *q) {
    for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
}

void to_q8_0(const float *x, uint8_t *out) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    const float scale = float_of_half(half_of_float(largest / 127.0f)), inverse = inverse_of(scale);
    out = put_half(out, scale);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(clamp_round(x[i] * inverse, -127, 127));
}

// The scale that fits `q` to `x` best, by least squares.
float fit(const float *x, const int *q) {
    float product = 0, square = 0;
    for (int i = 0; i < 32; ++i) {
        product += x[i] * static_cast<float>(q[i]);
        square += static_cast<float>(q[i] * q[i]);
    }
    return square > 0 ? product / square : 0;
}

float squared_error(const float *x, const int *q, float scale, float minimum) {
    float sum = 0;
    for (int i = 0; i < 32; ++i) {
        const float error = x[i] - (scale * static_cast<float>(q[i]) + minimum);
        sum += error * error;
    }
    return sum;
}

// Scales around the one that puts the largest magnitude at an end; each is refitted to the values that it gives, and
// the one with the least squared error stays.
void to_q4_0(const float *x, uint8_t *out) {
    float extreme = 0;
    for (int i = 0; i < 32; ++i)
        if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    float best_scale = 0, best_error = INFINITY;
    for (int step = -6; step <= 6; ++step) {
        const float inverse = extreme != 0.0f ? (-8.0f + 0.15f * static_cast<float>(step)) / extreme : 0.0f;
        int q[32];
        for (int i = 0; i < 32; ++i) q[i] = clamp_round(x[i] * inverse, -8, 7);
        const float scale = float_of_half(half_of_float(fit(x, q))), error = squared_error(x, q, scale, 0);
        if (error < best_error) {
            best_error = error;
            best_scale = scale;
        }
    }
    int q[32];
    for (int i = 0; i < 32; ++i) q[i] = clamp_round(x[i] * inverse_of(best_scale), -8, 7) + 8;
    put_nibbles(put_half(out, best_scale), q);
}

void to_q4_1(const float *x, uint8_t *out) {
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; ++i) {
        low = std::fmin(low, x[i]);
        high = std::fmax(high, x[i]);
    }
    float best_scale = 0, best_minimum = low, best_error = INFINITY;
    // Cutting the ends off a little makes the steps smaller, which pays where few values lie there.
    for (int step = 0; step <= 8; ++step) {
        const float cut = 0.02f * static_cast<float>(step) * (high - low);
        const float minimum = float_of_half(half_of_float(low + cut));
        const float scale = float_of_half(half_of_float((high - low - 2 * cut) / 15.0f)), inverse = inverse_of(scale);
        int q[32];
        for (int i = 0; i < 32; ++i) q[i] = clamp_round((x[i] - minimum) * inverse, 0, 15);
        const float error = squared_error(x, q, scale, minimum);
        if (error < best_error) {
            best_error = error;
            best_scale = scale;
            best_minimum = minimum;
        }
    }
    int q[32];
    for (int i = 0; i < 32; ++i) q[i] = clamp_round((x[i] - best_minimum) * inverse_of(best_scale), 0, 15);
    put_nibbles(put_half(put_half(out, best_scale), best_minimum), q);
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
