#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "pool.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint64_t;
using std::uint8_t;

// A long run of consecutive memory, as a kernel reads its weights.
constexpr size_t run_bytes = size_t{1} << 18;

uint64_t read_run(const uint8_t *data) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < run_bytes; i += 64) {
        __builtin_prefetch(data + i + 4096, 0, 3);
        uint64_t line[8];
        std::memcpy(line, data + i, 64);
        for (int j = 0; j < 8; ++j) sums[j] ^= line[j];
    }
    uint64_t sum = 0;
    for (const uint64_t part : sums) sum ^= part;
    return sum;
}

}  // namespace

double fastest_read(size_t num_bytes, int passes) {
    const size_t num_runs = std::max<size_t>(1, num_bytes / run_bytes);
    const Memory memory = allocate(num_runs * run_bytes);
    // Pages that were never written are all one page of zeros.
    pool::parallel_for(num_runs, [&](size_t i) { std::memset(memory.get() + i * run_bytes, 1, run_bytes); });
    std::atomic<uint64_t> used{0};  // keeps the reads from being optimised away
    double fastest = 1e30;
    for (int pass = 0; pass < passes; ++pass) {
        const auto start = std::chrono::steady_clock::now();
        pool::parallel_for(num_runs, [&](size_t i) { used ^= read_run(memory.get() + i * run_bytes); });
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        fastest = std::min(fastest, time.count());
    }
    return fastest;
}

}  // namespace paceline
