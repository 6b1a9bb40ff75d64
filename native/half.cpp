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
