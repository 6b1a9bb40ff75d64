// Large aligned memory that kernels stream through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace paceline {

struct FreeMemory {
    void operator()(std::uint8_t *memory) const;
};
using Memory = std::unique_ptr<std::uint8_t, FreeMemory>;

// Uninitialised, at a huge page's boundary, with huge pages asked for where that pays: with 4 KiB pages, reading
// weights at memory speed spends a tenth of the time on page tables. Throws std::bad_alloc.
Memory allocate(std::size_t num_bytes);

}  // namespace paceline
