// The random numbers of src/paceline/sampling/noise.py, the same bits: Philox-4x32-10 (Salmon et al. 2011), key = the
// seed, counter words (output index, token id, purpose, salt).
#pragma once

#include <cstdint>

namespace paceline {

struct Draw {
    std::uint64_t seed;
    std::uint32_t output_index, purpose, salt;
};

struct PhiloxWords {
    std::uint32_t words[4];
};

PhiloxWords philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3, std::uint64_t key);

// Natural logarithm of a normal positive number, within 1.5 units in the last place. Plain additions, multiplications
// and divisions of doubles in one order: the same bits on every machine, whatever its instruction set and C library.
double fixed_log(double x);

// Standard Gumbel noise of one token, -log(-log(u)); within 4 units in the last place of the larger of 1 and the
// result.
double gumbel_noise(const Draw &draw, std::uint32_t token_id);

}  // namespace paceline
