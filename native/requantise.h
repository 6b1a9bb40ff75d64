// Float rows to the blocks of a file format, for models that may be made smaller as they load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout.h"

namespace paceline {

// Writes a row of `num_inputs` values as blocks of `format` to `blocks`. Formats: q8_0, q4_0, q4_1.
void requantise_row(Format format, const float *x, std::size_t num_inputs, std::vector<std::uint8_t> &blocks);

bool can_requantise_to(Format format);

// Bytes that a unit of one row takes in the file's layout.
std::size_t file_unit_bytes(Format format);

}  // namespace paceline
