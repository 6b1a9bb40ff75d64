// Block formats of GGUF tensors to float32, the same numbers as `gguf.quants`, bit for bit.
// Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

struct BlockFormat {
    const char *name;
    std::size_t elements;  // values in a block
    std::size_t bytes;     // bytes of a block
    void (*decode)(const std::uint8_t *blocks, float *out, std::size_t num_blocks);
};

// Returns nullptr where the name is not known.
const BlockFormat *find_block_format(const std::string &name);

// Decodes `num_blocks` consecutive blocks on up to `num_threads` threads. Values do not depend on the thread count.
void dequantize(const BlockFormat &format, const std::uint8_t *blocks, float *out, std::size_t num_blocks,
                unsigned num_threads);

}  // namespace paceline
