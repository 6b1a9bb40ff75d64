// The decoders of blocks of 256 values; use dequantize.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline::blocks {

void decode_q2_k(const std::uint8_t *in, float *out, std::size_t num_blocks);
void decode_q3_k(const std::uint8_t *in, float *out, std::size_t num_blocks);
void decode_q4_k(const std::uint8_t *in, float *out, std::size_t num_blocks);
void decode_q5_k(const std::uint8_t *in, float *out, std::size_t num_blocks);
void decode_q6_k(const std::uint8_t *in, float *out, std::size_t num_blocks);

}  // namespace paceline::blocks
