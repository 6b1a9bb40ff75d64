// Types without a packed format of their own, rewritten in another's blocks: the same values, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dequantize.hpp"
#include "layout.h"

namespace paceline {

// The format whose blocks hold every value of the type: q8_0 for IQ4_NL, whose codebook is of signed bytes, and q6_k
// for Q3_K, whose weights and scales are smaller ones of the same kind. None where there is no such.
std::optional<Format> exact_format_of(const std::string &type_name);

// Writes a row of `num_inputs` values, whole blocks of `type`, as blocks of `exact_format_of(type.name)`.
void transcode_row(const BlockFormat &type, const std::uint8_t *row, std::size_t num_inputs,
                   std::vector<std::uint8_t> &blocks);

}  // namespace paceline
