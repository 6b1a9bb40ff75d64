// Linear layers: y = x W^T + bias, with packed weights and int8 activations.
#pragma once

#include <cstddef>

#include "linear_kernels.h"
#include "packed.h"

namespace paceline {

// y[m * ldy + n] for rows m < num_rows and outputs n of blocks [first_block, last_block), on the calling thread. Output
// n is row n of `weights`; y holds whole rows. `bias`: one value an output, or nullptr. Activations have
// row_groups(weights.num_inputs()) groups a row. A row's results do not depend on the other rows or the range of
// blocks.
void linear_blocks(const Packed &weights, Activations x, std::size_t num_rows, const float *bias, float *y,
                   std::size_t ldy, std::size_t first_block, std::size_t last_block);

// All blocks, on the pool.
void linear(const Packed &weights, Activations x, std::size_t num_rows, const float *bias, float *y, std::size_t ldy);

// How `linear` cuts `num_blocks` for `num_threads`: chunk i is blocks [chunk_begin(i), chunk_begin(i + 1)). Halves,
// then halves of the rest, so that threads read long runs of memory and still end together.
class Chunks {
   public:
    Chunks(std::size_t num_blocks, std::size_t num_threads, std::size_t multiple);
    std::size_t count() const { return count_; }
    std::size_t begin(std::size_t chunk) const;

   private:
    std::size_t num_units_, num_blocks_, num_threads_, multiple_, count_;
};

}  // namespace paceline
