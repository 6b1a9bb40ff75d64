#include "memory.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace paceline {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20, cache_line = 64;

}  // namespace

void FreeMemory::operator()(std::uint8_t *memory) const { std::free(memory); }

Memory allocate(std::size_t num_bytes) {
    const std::size_t alignment = num_bytes >= huge_page ? huge_page : cache_line;
    // Only whole huge pages are rounded up to, lest small tensors waste one each.
    const std::size_t size = (num_bytes + cache_line - 1) / cache_line * cache_line;
    void *memory = nullptr;
    if (posix_memalign(&memory, alignment, size ? size : cache_line)) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    // A wish: where the system has no huge pages, ordinary ones serve.
    if (alignment == huge_page) static_cast<void>(madvise(memory, size / huge_page * huge_page, MADV_HUGEPAGE));
#endif
    return Memory(static_cast<std::uint8_t *>(memory));
}

}  // namespace paceline
