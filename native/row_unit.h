// One row's share of a unit, between the file's layout and the packed one.
#pragma once

#include <cstdint>

#include "layout.h"

namespace paceline {

struct RowUnit {
    // Weights as unsigned bytes, 4 inputs to a word in memory order: [group][vector]. Zero where the row is padding.
    std::uint32_t words[8][8];
    // Half-precision bits: of the unit (K-quants: d and dmin in [0]) or of its two groups; m with its sign turned.
    std::uint16_t d[2], m[2];
    std::uint8_t scales[16];   // q4_k, q5_k: of 8 groups; q6_k: of 16 halves of groups, signed
    std::uint8_t minimums[8];  // q4_k, q5_k
};

// Reads a unit's weights of one row from the file's blocks of the same format. `num_groups` is how many groups the row
// has left here (a row may end within a unit of 64); the rest becomes zeros.
void read_row_unit(Format format, const std::uint8_t *blocks, std::size_t num_groups, RowUnit &out);

// Writes row `row` (0 to 15) of a unit.
void write_row_unit(Format format, const RowUnit &in, std::size_t row, std::uint8_t *unit);

// The inverse of `write_row_unit`, for unpacking.
void read_packed_row(Format format, const std::uint8_t *unit, std::size_t row, RowUnit &out);

// The row's weights of a unit as floats, with the arithmetic of `dequantize`.
void dequantize_row_unit(Format format, const RowUnit &in, float *out);

}  // namespace paceline
