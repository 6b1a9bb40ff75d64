// The Python border: types, contiguity and sizes are checked here, so that the code behind it need not.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "dequantize.hpp"

namespace nb = nanobind;
using namespace nb::literals;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static void dequantize(const std::string &type_name, Bytes data, Floats out, unsigned num_threads) {
    const paceline::BlockFormat *format = paceline::find_block_format(type_name);
    if (!format) throw std::invalid_argument("unknown tensor type " + type_name);
    const std::size_t num_blocks = data.shape(0) / format->bytes;
    if (data.shape(0) % format->bytes || out.shape(0) != num_blocks * format->elements)
        throw std::invalid_argument(std::to_string(data.shape(0)) + " bytes of " + type_name + " do not fill " +
                                    std::to_string(out.shape(0)) + " values");
    nb::gil_scoped_release release;
    paceline::dequantize(*format, data.data(), out.data(), num_blocks, num_threads);
}

NB_MODULE(_native, module) {
    module.doc() = "Paceline's native kernels.";
    module.def("dequantize", &dequantize, "type_name"_a, "data"_a.noconvert(), "out"_a.noconvert(), "num_threads"_a,
               "Decode GGUF blocks (uint8 [num_bytes]) into float32 [num_values]; ValueError where sizes disagree.");
    paceline::bind_runtime(module);
    paceline::bind_linear(module);
    paceline::bind_ops(module);
    paceline::bind_sampling(module);
    paceline::bind_model(module);
}
