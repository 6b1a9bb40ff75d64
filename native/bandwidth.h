// What memory can deliver: the limit that a kernel which reads every weight once is measured against.
#pragma once

#include <cstddef>

namespace paceline {

// Reads `num_bytes` of fresh memory `passes` times on the pool, and returns the seconds of the fastest pass. To measure
// memory, choose a size that no cache holds.
double fastest_read(std::size_t num_bytes, int passes);

}  // namespace paceline
