// The paged keys and values of one decoder, within memory that other decoders may share. The memory is pages of equal
// size; a page holds one or more blocks of 16 positions, and a block the keys and the values of every layer:
//     page   [blocks_per_page][num_layers][keys, values][unit], and what is left over
//     unit   one layer's keys, or values, as attention.h lays them out: num_kv_heads * head_dim * 16 halves
// A page is a whole number of units. So from a layer's first keys those of any block lie a number of units away that is
// the same for all layers: `block_id` is that number, and what kernels take for the number of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "attention.h"

namespace paceline {

class KvStore {
   public:
    // `memory` is num_pages * page_bytes bytes, kept alive by `owner`. Throws std::invalid_argument where a page is not
    // whole units, does not hold the blocks, or has an id that kernels cannot count.
    KvStore(std::size_t num_layers, std::size_t num_kv_heads, std::size_t head_dim, std::size_t blocks_per_page,
            std::uint8_t *memory, std::size_t num_pages, std::size_t page_bytes, std::shared_ptr<const void> owner)
        : num_layers_(num_layers),
          unit_(num_kv_heads * head_dim * kv_block_size),
          blocks_per_page_(blocks_per_page),
          num_pages_(num_pages),
          units_per_page_(page_bytes / unit_bytes()),
          memory_(reinterpret_cast<std::uint16_t *>(memory)),
          owner_(std::move(owner)) {
        if (page_bytes % unit_bytes() || blocks_per_page < 1 || blocks_per_page * 2 * num_layers > units_per_page_)
            throw std::invalid_argument("pages that are not whole units of one layer's keys, or too small for a block");
        if (num_pages > std::numeric_limits<std::int32_t>::max() / units_per_page_)
            throw std::invalid_argument("more pages than kernels can count");
    }

    std::size_t num_layers() const { return num_layers_; }
    std::size_t num_pages() const { return num_pages_; }
    std::size_t blocks_per_page() const { return blocks_per_page_; }
    std::size_t positions_per_page() const { return blocks_per_page_ * kv_block_size; }
    std::size_t num_bytes() const { return num_pages_ * units_per_page_ * unit_bytes(); }
    std::int32_t block_id(std::size_t page, std::size_t block) const {
        return static_cast<std::int32_t>(page * units_per_page_ + block * 2 * num_layers_);
    }
    std::uint16_t *halves() { return memory_; }
    std::uint16_t *keys(std::size_t layer) { return memory_ + 2 * layer * unit_; }
    std::uint16_t *values(std::size_t layer) { return keys(layer) + unit_; }

   private:
    std::size_t unit_bytes() const { return unit_ * sizeof(std::uint16_t); }

    std::size_t num_layers_, unit_, blocks_per_page_, num_pages_, units_per_page_;
    std::uint16_t *memory_;
    std::shared_ptr<const void> owner_;
};

}  // namespace paceline
