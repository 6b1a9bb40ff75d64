#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "activations.h"
#include "bindings.h"
#include "linear.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using GroupBytes = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // [rows, groups * 64]

[[noreturn]] void refuse(const std::string &reason) { throw std::invalid_argument(reason); }

void check_groups(const GroupBytes &groups, std::size_t num_inputs) {
    const std::size_t row_bytes = groups.shape(1);
    if (num_inputs % group_inputs)
        refuse("rows of " + std::to_string(num_inputs) + " values are not whole groups of 32");
    if (row_bytes != row_groups(num_inputs) * sizeof(ActivationGroup))
        refuse("rows of " + std::to_string(row_bytes) + " bytes are not the groups of " + std::to_string(num_inputs) +
               " inputs");
    if (groups.size() && reinterpret_cast<std::uintptr_t>(groups.data()) % alignof(ActivationGroup))
        refuse("activation groups are not aligned to 64 bytes");
}

void quantise(Rows x, GroupBytes out) {
    const std::size_t num_rows = x.shape(0), num_inputs = x.shape(1), num_groups = row_groups(num_inputs);
    check_groups(out, num_inputs);
    if (out.shape(0) != num_rows)
        refuse("groups of " + std::to_string(out.shape(0)) + " rows, inputs of " + std::to_string(num_rows));
    auto *groups = reinterpret_cast<ActivationGroup *>(out.data());
    const float *values = x.data();
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](std::size_t row) {
        quantise_row(values + row * num_inputs, num_inputs, groups + row * num_groups);
    });
}

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowIds = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Type of the file, its bytes, the format to pack as (the type's own if empty), the rows to pack (all if none).
using PartArguments = std::tuple<std::string, Bytes, std::string, std::optional<RowIds>>;

Part make_part(const PartArguments &arguments, std::size_t num_inputs) {
    const auto &[type_name, bytes, format_name, rows] = arguments;
    const BlockFormat *type = find_block_format(type_name);
    if (!type) refuse("unknown tensor type " + type_name);
    const std::optional<Format> format = format_of(format_name.empty() ? type_name : format_name);
    if (!format) refuse((format_name.empty() ? type_name : format_name) + " is not a packed format");
    const std::size_t row_bytes = num_inputs / type->elements * type->bytes;
    if (num_inputs % type->elements || row_bytes == 0 || bytes.shape(0) % row_bytes)
        refuse(std::to_string(bytes.shape(0)) + " bytes of " + type_name + " are not rows of " +
               std::to_string(num_inputs) + " inputs");
    const std::size_t num_file_rows = bytes.shape(0) / row_bytes;
    return {type,   bytes.data(), num_file_rows, rows ? rows->data() : nullptr, rows ? rows->shape(0) : num_file_rows,
            *format};
}

void make_packed(Packed *self, const std::vector<PartArguments> &arguments, std::size_t num_inputs, bool interleave) {
    std::vector<Part> parts;
    for (const PartArguments &part : arguments) parts.push_back(make_part(part, num_inputs));
    nb::gil_scoped_release release;
    new (self) Packed(parts, num_inputs, interleave);
}

using Outputs = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bias = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void run_linear(const Packed &weights, GroupBytes x, std::optional<Bias> bias, Outputs y) {
    check_groups(x, weights.num_inputs());
    const std::size_t num_rows = x.shape(0), num_outputs = weights.num_outputs();
    if (y.shape(0) != num_rows || y.shape(1) != num_outputs)
        refuse("outputs are [" + std::to_string(y.shape(0)) + ", " + std::to_string(y.shape(1)) + "], expected [" +
               std::to_string(num_rows) + ", " + std::to_string(num_outputs) + "]");
    if (bias && bias->shape(0) != num_outputs)
        refuse("a bias of " + std::to_string(bias->shape(0)) + " values for " + std::to_string(num_outputs) +
               " outputs");
    const Activations rows{reinterpret_cast<const ActivationGroup *>(x.data()), row_groups(weights.num_inputs())};
    const float *bias_values = bias ? bias->data() : nullptr;
    float *out = y.data();
    nb::gil_scoped_release release;
    linear(weights, rows, num_rows, bias_values, out, num_outputs);
}

void unpack(const Packed &weights, Outputs out) {
    if (out.shape(0) != weights.num_outputs() || out.shape(1) != weights.num_inputs())
        refuse("the output has another shape");
    float *values = out.data();
    nb::gil_scoped_release release;
    weights.unpack(values);
}

}  // namespace

void bind_linear(nb::module_ &module) {
    module.def(
        "quantise", &quantise, "x"_a.noconvert(), "out"_a.noconvert(),
        "Quantise rows (float32 [rows, inputs]) to activation groups (uint8 [rows, groups * 64], 64-byte aligned).");
    nb::class_<Packed>(module, "Packed", "Weights of one or several matrices, laid out for the linear kernels.")
        .def("__init__", &make_packed, "parts"_a, "num_inputs"_a, "interleave"_a)
        .def_prop_ro("num_inputs", &Packed::num_inputs)
        .def_prop_ro("num_outputs", &Packed::num_outputs)
        .def_prop_ro("nbytes", &Packed::num_bytes)
        .def("unpack", &unpack, "out"_a.noconvert())
        .def("linear", &run_linear, "x"_a.noconvert(), "bias"_a.noconvert().none(), "y"_a.noconvert());
}

}  // namespace paceline
