// IEEE 754 binary16 to binary32, without an instruction for it.
#pragma once

#include <cstdint>

namespace paceline {

float float_of_half(std::uint16_t bits);
std::uint16_t half_of_float(float value);  // to the nearest, ties to even

}  // namespace paceline
