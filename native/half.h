// IEEE 754 binary16 to binary32 and back, without an instruction for it.
#pragma once

#include <cstdint>
#include <cstring>

namespace paceline {

// Without branches, so that loops of it become vectors.
inline float float_of_half(std::uint16_t half) {
    const std::uint32_t magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    float scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled *= 0x1p112f;  // the exponents' biases differ by 112; subnormal halves become exact floats
    std::uint32_t bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    const std::uint32_t not_finite = magnitude | 0x7f800000u;
    bits = (magnitude >= 0x0f800000u ? not_finite : bits) | sign;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint16_t half_of_float(float value);  // to the nearest, ties to even

}  // namespace paceline
