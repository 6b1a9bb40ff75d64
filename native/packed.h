// Weights of one or several matrices, laid out for the linear kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dequantize.hpp"
#include "layout.h"
#include "memory.h"

namespace paceline {

// A matrix as a file has it, or chosen rows of it.
struct Part {
    const BlockFormat *type;    // of the file's blocks
    const std::uint8_t *bytes;  // [num_file_rows, row bytes]
    std::size_t num_file_rows;
    const std::uint32_t *rows;  // the rows to pack, in this order, repetitions allowed; nullptr packs all
    std::size_t num_rows;
    Format format;  // format_of the type, or another one to re-quantise to
};

// Immutable; kernels read it from many threads. Output i of a linear layer is row i: the parts' rows one after the
// other, or, interleaved, 16 of the first part, 16 of the second, 16 of the first, ...
class Packed {
   public:
    struct Block {
        const std::uint8_t *data;
        Format format;
    };

    // Packs on the pool. Throws std::invalid_argument where shapes do not fit: inputs are a multiple of 32 and of the
    // format's block; each part but the last has a multiple of 16 rows; interleaved ones have equally many.
    Packed(const std::vector<Part> &parts, std::size_t num_inputs, bool interleave);

    std::size_t num_inputs() const { return num_inputs_; }
    std::size_t num_outputs() const { return num_outputs_; }
    std::size_t num_bytes() const { return num_bytes_; }
    const std::vector<Block> &blocks() const { return blocks_; }

    // Weights as float32 [num_outputs, num_inputs], the same as dequantising the file's rows. For tests and inspection.
    void unpack(float *out) const;

   private:
    std::size_t num_inputs_, num_outputs_ = 0, num_bytes_ = 0;
    std::vector<Block> blocks_;
    Memory memory_;
};

// The packed format that holds a file's type as it is, its own or another's with room for its values, if there is one.
std::optional<Format> format_of(const std::string &type_name);

}  // namespace paceline
