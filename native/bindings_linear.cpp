#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "activations.h"
#include "bindings.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using GroupBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // [rows, groups * 64]

void quantise(Rows x, GroupBytes out) {
    const std::size_t num_rows = x.shape(0), num_inputs = x.shape(1);
    const std::size_t num_groups = row_groups(num_inputs);
    if (num_inputs % group_inputs) throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " values are not whole groups of 32");
    if (out.shape(0) != num_rows || out.shape(1) != num_groups * sizeof(ActivationGroup))
        throw std::invalid_argument("the output does not hold " + std::to_string(num_rows) + " rows of " + std::to_string(num_groups) + " groups");
    if (reinterpret_cast<std::uintptr_t>(out.data()) % alignof(ActivationGroup))
        throw std::invalid_argument("the output is not aligned to 64 bytes");
    auto *groups = reinterpret_cast<ActivationGroup *>(out.data());
    const float *values = x.data();
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](std::size_t row) {
        quantise_row(values + row * num_inputs, num_inputs, groups + row * num_groups);
    });
}

}  // namespace

void bind_linear(nb::module_ &module) {
    module.def("quantise", &quantise, "x"_a.noconvert(), "out"_a.noconvert(),
               "Quantise rows (float32 [rows, inputs]) to activation groups (uint8 [rows, groups * 64], 64-byte aligned).");
}

}  // namespace paceline
