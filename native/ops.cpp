#include "ops.h"

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "cpu.h"

namespace paceline {

using std::size_t;

const OpKernels &op_kernels() {
#if defined(__x86_64__)
    switch (cpu::current()) {
        case cpu::Isa::portable: return ops_portable;
        case cpu::Isa::avx2:
        case cpu::Isa::avx2_vnni: return ops_avx2;
        case cpu::Isa::avx512_vnni: return ops_avx512;
    }
#endif
    return ops_portable;
}

namespace {

// Values that are worked out and then quantised while they are in the nearest cache.
constexpr size_t piece = 256, groups_of_piece = piece / group_inputs;

}  // namespace

void rms_norm_quantise(const float *x, const float *weight, float eps, size_t size, ActivationGroup *out) {
    const float factor = op_kernels().rms_factor(x, eps, size);
    float normed[piece];
    for (size_t i = 0; i < size; i += piece) {
        const size_t count = std::min(piece, size - i);
        op_kernels().scale(x + i, factor, weight + i, normed, count);
        quantise_groups(normed, count / group_inputs, out + i / group_inputs);
    }
    zero_padding(size, out);
}

void gate_quantise(Activation activation, const GateUp &in, size_t begin, size_t end, ActivationGroup *out) {
    float gated[piece];
    for (size_t group = begin; group < end; group += groups_of_piece) {
        const size_t count = std::min(groups_of_piece, end - group);
        const size_t skipped = 2 * group * in.block_stride;
        op_kernels().gate(activation, in.gate + skipped, in.up + skipped, in.block_stride, gated, 2 * count);
        quantise_groups(gated, count, out + group);
    }
}

void Rotary::angles(std::int64_t position, float *cos, float *sin) const {
    for (size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = static_cast<float>(position) * frequencies_[i];
        cos[i] = static_cast<float>(std::cos(angle)) * scale_;
        sin[i] = static_cast<float>(std::sin(angle)) * scale_;
    }
}

void rotate_and_store(const QkvShape &shape, float *row, const float *cos, const float *sin, std::uint16_t *keys,
                      std::uint16_t *values, size_t block_id, size_t slot) {
    const OpKernels &kernels = op_kernels();
    const auto head_dim = static_cast<size_t>(shape.head_dim), num_kv_heads = static_cast<size_t>(shape.num_kv_heads);
    const auto norm_and_rotate = [&](float *head, const float *norm) {
        if (norm) rms_norm(head, norm, shape.norm_eps, head, head_dim);
        kernels.rotate(shape.pairing, head, cos, sin, head_dim);
    };
    for (int head = 0; head < shape.num_heads; ++head, row += head_dim) norm_and_rotate(row, shape.q_norm);
    float *value = row + num_kv_heads * head_dim;
    const size_t head_size = head_dim * kv_block_size;
    for (size_t head = 0; head < num_kv_heads; ++head, row += head_dim, value += head_dim) {
        norm_and_rotate(row, shape.k_norm);
        const size_t block = (block_id * num_kv_heads + head) * head_size;
        kernels.store_key(row, keys + block, slot, head_dim);
        kernels.store_value(value, values + block + slot * head_dim, head_dim);
    }
}

void embed(const BlockFormat &format, const std::uint8_t *table, size_t token_id, size_t size, float scale,
           float *out) {
    const size_t num_blocks = size / format.elements;
    format.decode(table + token_id * num_blocks * format.bytes, out, num_blocks);
    if (scale != 1.0f)
        for (size_t i = 0; i < size; ++i) out[i] *= scale;
}

}  // namespace paceline
