#include "half.h"

#include <cstring>

namespace paceline {
namespace {

using std::uint16_t;
using std::uint32_t;

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

}  // namespace

float float_of_half(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: exact in float32
        const float magnitude = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
        return sign ? -magnitude : magnitude;
    }
    return float_of_bits(sign | (exponent == 0x1fu ? 0xffu : exponent + 112u) << 23 | mantissa << 13);
}

uint16_t half_of_float(float value) {
    const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // not a number
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below the normal range: adding 0.5 leaves units of 2^-24 in the lowest bits, rounded by the addition.
        return sign | static_cast<uint16_t>(bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u);
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return sign | static_cast<uint16_t>((magnitude - (112u << 23) + 0xfffu + odd) >> 13);
}

}  // namespace paceline
