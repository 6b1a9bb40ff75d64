// Numbers in a file's blocks. Files are little-endian; reading bytes one by one needs neither alignment nor a
// little-endian machine.
#pragma once

#include <cstdint>

#include "half.h"

namespace paceline {

inline std::uint32_t read_u16(const std::uint8_t *p) {
    return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8;
}

inline std::uint32_t read_u32(const std::uint8_t *p) { return read_u16(p) | read_u16(p + 2) << 16; }

inline float read_half(const std::uint8_t *p) { return float_of_half(static_cast<std::uint16_t>(read_u16(p))); }

// The 6-bit scale and minimum of group `group` (0 to 7) from the twelve bytes that Q4_K and Q5_K have.
struct ScaleAndMinimum {
    std::uint8_t scale, minimum;
};

inline ScaleAndMinimum read_scale_and_minimum(const std::uint8_t *scales, int group) {
    if (group < 4)
        return {static_cast<std::uint8_t>(scales[group] & 63), static_cast<std::uint8_t>(scales[group + 4] & 63)};
    return {static_cast<std::uint8_t>((scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4)),
            static_cast<std::uint8_t>((scales[group + 4] >> 4) | (scales[group] >> 6 << 4))};
}

// Q3_K's 6-bit scale of 16 inputs number `index` (0 to 15), less 32, from its twelve bytes.
inline int read_q3_k_scale(const std::uint8_t *scales, int index) {
    const int low = scales[index % 8] >> (4 * (index / 8)) & 15, high = scales[8 + index % 4] >> (2 * (index / 4)) & 3;
    return (low | high << 4) - 32;
}

// Q3_K's value number `i` (0 to 255), from -4 to 3: 64 bytes of two bits, and 32 of third bits, which are zero where
// four is taken off.
inline int read_q3_k_value(const std::uint8_t *third_bits, const std::uint8_t *quants, int i) {
    const int group = i / 32, j = i % 32;
    const int low = quants[32 * (group / 4) + j] >> (2 * (group % 4)) & 3;
    return low - ((third_bits[j] >> group & 1) ? 0 : 4);
}

// What IQ4_NL's 4-bit values stand for.
inline constexpr std::int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace paceline
