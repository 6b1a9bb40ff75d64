// The paged keys and values of one decoder, as attention.h lays them out. The memory is reserved and not touched, so that
// a large store costs only what sequences fill.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"
#include "memory.h"

namespace paceline {

class KvStore {
   public:
    // Throws std::bad_alloc.
    KvStore(std::size_t num_layers, std::size_t num_blocks, std::size_t num_kv_heads, std::size_t head_dim)
        : num_layers_(num_layers),
          num_blocks_(num_blocks),
          layer_size_(num_blocks * num_kv_heads * head_dim * kv_block_size),
          memory_(allocate(num_bytes())) {}

    std::size_t num_layers() const { return num_layers_; }
    std::size_t num_blocks() const { return num_blocks_; }
    std::size_t num_bytes() const { return 2 * num_layers_ * layer_size_ * sizeof(std::uint16_t); }
    std::uint16_t *keys(std::size_t layer) { return halves() + 2 * layer * layer_size_; }
    std::uint16_t *values(std::size_t layer) { return keys(layer) + layer_size_; }

   private:
    std::uint16_t *halves() { return reinterpret_cast<std::uint16_t *>(memory_.get()); }

    std::size_t num_layers_, num_blocks_, layer_size_;
    Memory memory_;
};

}  // namespace paceline
