#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "bindings.h"
#include "cpu.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const cpu::Isa isa : cpu::available()) names.emplace_back(cpu::name(isa));
    return names;
}

void set_num_threads(unsigned count) {
    if (count < 1) throw std::invalid_argument("0 threads; at least 1 is needed");
    pool::set_num_threads(count);
}

// Lets tests see which chunks ran, how often, and that a nested loop runs too: each adds 1 to its own count.
void count_chunks(nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> counts, bool nested) {
    std::int64_t *data = counts.data();
    const std::size_t size = counts.shape(0);
    nb::gil_scoped_release release;
    if (!nested) {
        pool::parallel_for(size, [&](std::size_t i) { ++data[i]; });
        return;
    }
    pool::parallel_for(2, [&](std::size_t half) {
        const std::size_t begin = size * half / 2, end = size * (half + 1) / 2;
        pool::parallel_for(end - begin, [&](std::size_t i) { ++data[begin + i]; });
    });
}

}  // namespace

void bind_runtime(nb::module_ &module) {
    module.def("isas", &isas, "Names of the instruction sets that this machine can run, the best last.");
    module.def("isa", [] { return std::string(cpu::name(cpu::current())); }, "Name of the one in use.");
    module.def("set_isa", &cpu::set, "name"_a, "Use this one; ValueError, with those there are, where it is missing.");
    module.def("num_threads", &pool::num_threads, "Threads that native kernels use, the caller's included.");
    module.def("set_num_threads", &set_num_threads, "count"_a, nb::call_guard<nb::gil_scoped_release>(),
               "Use `count` threads from now on; ValueError below 1.");
    module.def("count_chunks", &count_chunks, "counts"_a.noconvert(), "nested"_a = false,
               "Add 1 to each of `counts` (int64 [n]), one chunk of the pool each.");
    module.def("fastest_read", &fastest_read, "num_bytes"_a, "passes"_a, nb::call_guard<nb::gil_scoped_release>(),
               "Seconds of the fastest of `passes` reads of `num_bytes` of memory by the pool.");
}

}  // namespace paceline
