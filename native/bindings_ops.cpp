// Operators as Python sees them: whole arrays of rows, spread over the pool. The engine's native forward pass calls the
// same functions row by row (ops.h, attention.h).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "bindings.h"
#include "ops.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

using std::size_t;

template <class T, size_t Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Ids = Array<const std::int32_t, 1>;

void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

void rms_norm_rows(Array<const float, 2> x, Array<const float, 1> weight, float eps, Array<float, 2> out) {
    const size_t num_rows = x.shape(0), size = x.shape(1);
    require(weight.shape(0) == size && out.shape(0) == num_rows && out.shape(1) == size,
            "x, weight and out disagree in shape");
    require(size % 8 == 0 && size > 0, "rows of a multiple of 8 values are supported");
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        rms_norm(x.data() + row * size, weight.data(), eps, out.data() + row * size, size);
    });
}

ActivationGroup *groups_of(const Array<std::uint8_t, 2> &out, size_t num_rows, size_t size) {
    require(size > 0 && size % group_inputs == 0, "rows of a multiple of 32 values are quantised");
    require(out.shape(0) == num_rows && out.shape(1) == row_groups(size) * sizeof(ActivationGroup),
            "out does not hold the rows' groups");
    require(out.size() == 0 || reinterpret_cast<std::uintptr_t>(out.data()) % alignof(ActivationGroup) == 0,
            "out is not aligned to 64 bytes");
    return reinterpret_cast<ActivationGroup *>(out.data());
}

void rms_norm_quantise_rows(Array<const float, 2> x, Array<const float, 1> weight, float eps,
                            Array<std::uint8_t, 2> out) {
    const size_t num_rows = x.shape(0), size = x.shape(1);
    require(weight.shape(0) == size, "x and weight disagree in shape");
    ActivationGroup *groups = groups_of(out, num_rows, size);
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        rms_norm_quantise(x.data() + row * size, weight.data(), eps, size, groups + row * row_groups(size));
    });
}

Activation activation_of(const std::string &name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    throw std::invalid_argument("activation " + name + "; silu and gelu_tanh are supported");
}

void gate_rows(const std::string &activation_name, Array<const float, 2> gate_up, bool interleaved,
               Array<float, 2> out) {
    const Activation activation = activation_of(activation_name);
    const size_t num_rows = out.shape(0), size = out.shape(1);
    require(size % 16 == 0 && gate_up.shape(0) == num_rows && gate_up.shape(1) == 2 * size,
            "gate_up must be [num_rows, 2 * size] for out [num_rows, size], size a multiple of 16");
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        const float *in = gate_up.data() + row * 2 * size;
        gate(activation, interleaved ? GateUp::interleaved(in) : GateUp::separate(in, in + size),
             out.data() + row * size, 0, size / 16);
    });
}

void gate_quantise_rows(const std::string &activation_name, Array<const float, 2> gate_up, bool interleaved,
                        Array<std::uint8_t, 2> out) {
    const Activation activation = activation_of(activation_name);
    const size_t num_rows = gate_up.shape(0), size = gate_up.shape(1) / 2;
    ActivationGroup *groups = groups_of(out, num_rows, size);
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        const float *in = gate_up.data() + row * 2 * size;
        ActivationGroup *row_out = groups + row * row_groups(size);
        gate_quantise(activation, interleaved ? GateUp::interleaved(in) : GateUp::separate(in, in + size), 0,
                      size / group_inputs, row_out);
        zero_padding(size, row_out);
    });
}

void add_rows(Array<float, 1> x, Array<const float, 1> y) {
    require(x.shape(0) == y.shape(0), "x and y disagree in size");
    nb::gil_scoped_release release;
    add(x.data(), y.data(), x.shape(0));
}

void rotary_angles(Array<const float, 1> frequencies, float scale, Array<const std::int64_t, 1> positions,
                   Array<float, 2> cos, Array<float, 2> sin) {
    const size_t half = frequencies.shape(0), num_rows = positions.shape(0);
    require(cos.shape(0) == num_rows && sin.shape(0) == num_rows && cos.shape(1) == half && sin.shape(1) == half,
            "cos and sin must be [num_rows, head_dim / 2]");
    const Rotary rotary({frequencies.data(), frequencies.data() + half}, scale);
    for (size_t row = 0; row < num_rows; ++row)
        rotary.angles(positions.data()[row], cos.data() + row * half, sin.data() + row * half);
}

void check_store(const Array<const std::uint16_t, 4> &keys, const Array<const std::uint16_t, 4> &values) {
    const bool same = keys.shape(0) == values.shape(0) && keys.shape(1) == values.shape(1);
    require(
        same && keys.shape(3) == kv_block_size && values.shape(2) == kv_block_size && keys.shape(2) == values.shape(3),
        "keys must be [num_blocks, num_kv_heads, head_dim, 16] and values [num_blocks, num_kv_heads, 16, head_dim]");
}

void rotate_and_store_rows(Array<float, 2> qkv, Array<const float, 2> cos, Array<const float, 2> sin, bool interleaved,
                           std::optional<Array<const float, 1>> q_norm, std::optional<Array<const float, 1>> k_norm,
                           float norm_eps, Array<std::uint16_t, 4> keys, Array<std::uint16_t, 4> values, Ids block_ids,
                           Ids slots) {
    check_store(Array<const std::uint16_t, 4>(keys), Array<const std::uint16_t, 4>(values));
    const size_t num_rows = qkv.shape(0), width = qkv.shape(1), num_kv_heads = keys.shape(1), head_dim = keys.shape(2);
    require(head_dim % 8 == 0 && width % head_dim == 0 && width / head_dim > 2 * num_kv_heads,
            "qkv must be [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], head_dim a multiple of 8");
    require(cos.shape(0) == num_rows && sin.shape(0) == num_rows && cos.shape(1) == head_dim / 2 &&
                sin.shape(1) == head_dim / 2 && block_ids.shape(0) == num_rows && slots.shape(0) == num_rows,
            "cos and sin must be [num_rows, head_dim / 2], block_ids and slots [num_rows]");
    require((!q_norm || q_norm->shape(0) == head_dim) && (!k_norm || k_norm->shape(0) == head_dim),
            "norms must be [head_dim]");
    for (size_t row = 0; row < num_rows; ++row)
        require(block_ids.data()[row] >= 0 && static_cast<size_t>(block_ids.data()[row]) < keys.shape(0) &&
                    slots.data()[row] >= 0 && slots.data()[row] < kv_block_size,
                "a block id or slot is out of range");
    const QkvShape shape{interleaved ? Pairing::interleaved : Pairing::halves,
                         static_cast<int>(width / head_dim - 2 * num_kv_heads),
                         static_cast<int>(num_kv_heads),
                         static_cast<int>(head_dim),
                         q_norm ? q_norm->data() : nullptr,
                         k_norm ? k_norm->data() : nullptr,
                         norm_eps};
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        rotate_and_store(shape, qkv.data() + row * width, cos.data() + row * head_dim / 2,
                         sin.data() + row * head_dim / 2, keys.data(), values.data(),
                         static_cast<size_t>(block_ids.data()[row]), static_cast<size_t>(slots.data()[row]));
    });
}

std::vector<AttentionSlice> slices_of(const Ids &num_rows, const Ids &starts,
                                      const Array<const std::int32_t, 2> &block_ids, size_t all_rows,
                                      size_t num_blocks) {
    require(starts.shape(0) == num_rows.shape(0) && block_ids.shape(0) == num_rows.shape(0),
            "num_rows, starts and block_ids must have one entry for each sequence");
    std::vector<AttentionSlice> slices;
    int first_row = 0;
    for (size_t i = 0; i < num_rows.shape(0); ++i) {
        const int rows = num_rows.data()[i], start = starts.data()[i];
        require(rows >= 0 && start >= 0, "num_rows and starts must not be negative");
        const std::int32_t *ids = block_ids.data() + i * block_ids.shape(1);
        const auto used = static_cast<size_t>((start + rows + kv_block_size - 1) / kv_block_size);
        require(used <= block_ids.shape(1), "block_ids do not cover the last row's position");
        require(std::all_of(ids, ids + used, [&](int id) { return id >= 0 && static_cast<size_t>(id) < num_blocks; }),
                "a block id is out of range");
        slices.push_back({first_row, rows, start, ids});
        first_row += rows;
    }
    require(static_cast<size_t>(first_row) == all_rows, "num_rows must sum up to the rows of queries");
    return slices;
}

void attention(Array<const float, 3> queries, Array<const std::uint16_t, 4> keys, Array<const std::uint16_t, 4> values,
               Ids num_rows, Ids starts, Array<const std::int32_t, 2> block_ids, float scale, int window,
               Array<float, 3> out) {
    check_store(keys, values);
    const size_t all_rows = queries.shape(0), width = queries.shape(1) * queries.shape(2);
    require(queries.shape(2) == keys.shape(2), "queries and keys disagree in head_dim");
    require(out.shape(0) == all_rows && out.shape(1) == queries.shape(1) && out.shape(2) == queries.shape(2),
            "out must have the shape of queries");
    const std::vector<AttentionSlice> slices = slices_of(num_rows, starts, block_ids, all_rows, keys.shape(0));
    nb::gil_scoped_release release;
    const AttentionShape shape{static_cast<int>(queries.shape(1)), static_cast<int>(keys.shape(1)),
                               static_cast<int>(queries.shape(2)), scale, window};
    const AttentionPlan plan(shape, slices.data(), slices.size());
    std::vector<float> scratch(plan.scratch_size());
    const AttentionBuffers buffers{queries.data(), width, keys.data(),   values.data(),
                                   out.data(),     width, scratch.data()};
    pool::parallel_for(plan.num_tasks(), [&](size_t task) { plan.attend(buffers, task); });
    pool::parallel_for(plan.num_rows(), [&](size_t row) { plan.finish(buffers, row); });
}

void embed_rows(const std::string &type_name, Array<const std::uint8_t, 1> table, Ids token_ids, float scale,
                Array<float, 2> out) {
    const BlockFormat *format = find_block_format(type_name);
    if (!format) throw std::invalid_argument("unknown tensor type " + type_name);
    const size_t num_rows = out.shape(0), size = out.shape(1);
    require(size > 0 && size % format->elements == 0, "a row must be whole blocks of its type");
    const size_t row_bytes = size / format->elements * format->bytes, num_tokens = table.shape(0) / row_bytes;
    require(table.shape(0) % row_bytes == 0, "the table must be whole rows");
    require(token_ids.shape(0) == num_rows, "out must have a row for each token");
    for (size_t row = 0; row < num_rows; ++row)
        require(token_ids.data()[row] >= 0 && static_cast<size_t>(token_ids.data()[row]) < num_tokens,
                "a token id is out of range");
    nb::gil_scoped_release release;
    pool::parallel_for(num_rows, [&](size_t row) {
        embed(*format, table.data(), static_cast<size_t>(token_ids.data()[row]), size, scale, out.data() + row * size);
    });
}

}  // namespace

void bind_ops(nb::module_ &module) {
    module.def("rms_norm", &rms_norm_rows, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert(),
               "Scale rows (float32 [num_rows, size]) to unit root mean square; `out` may be `x`.");
    module.def("rms_norm_quantise", &rms_norm_quantise_rows, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a,
               "out"_a.noconvert(), "The same, quantised to activation groups (uint8 [num_rows, groups * 64]).");
    module.def("gate", &gate_rows, "activation"_a, "gate_up"_a.noconvert(), "interleaved"_a, "out"_a.noconvert(),
               "activation(gate) * up; gates and ups as two halves of a row, or 16 of each in turn.");
    module.def("gate_quantise", &gate_quantise_rows, "activation"_a, "gate_up"_a.noconvert(), "interleaved"_a,
               "out"_a.noconvert(), "The same, quantised to activation groups (uint8 [num_rows, groups * 64]).");
    module.def("add", &add_rows, "x"_a.noconvert(), "y"_a.noconvert(), "x += y, float32 [size].");
    module.def("rotary_angles", &rotary_angles, "frequencies"_a.noconvert(), "scale"_a, "positions"_a.noconvert(),
               "cos"_a.noconvert(), "sin"_a.noconvert(),
               "Write cosines and sines (float32 [num_rows, head_dim / 2]) of positions (int64 [num_rows]).");
    module.def("rotate_and_store", &rotate_and_store_rows, "qkv"_a.noconvert(), "cos"_a.noconvert(),
               "sin"_a.noconvert(), "interleaved"_a, "q_norm"_a.noconvert().none(), "k_norm"_a.noconvert().none(),
               "norm_eps"_a, "keys"_a.noconvert(), "values"_a.noconvert(), "block_ids"_a.noconvert(),
               "slots"_a.noconvert(), "Norm and turn q in place, store k and v as halves (uint16 bits).");
    module.def("attention", &attention, "queries"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(),
               "num_rows"_a.noconvert(), "starts"_a.noconvert(), "block_ids"_a.noconvert(), "scale"_a, "window"_a,
               "out"_a.noconvert(), "Causal attention of ragged rows over paged keys and values.");
    module.def("embed", &embed_rows, "type_name"_a, "table"_a.noconvert(), "token_ids"_a.noconvert(), "scale"_a,
               "out"_a.noconvert(), "Rows of an embedding table, read from its file's bytes.");
}

}  // namespace paceline
