// Everything in a decoder that is not a matrix product, one row or range at a time, so that the caller decides what
// runs on which thread. A row's numbers depend on that row alone. Reference: src/paceline/kernels/reference.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "activations.h"
#include "dequantize.hpp"
#include "ops_table.h"

namespace paceline {

// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019); all [size], a multiple of 8. `out` may be `x`.
inline void rms_norm(const float *x, const float *weight, float eps, float *out, std::size_t size) {
    op_kernels().scale(x, op_kernels().rms_factor(x, eps, size), weight, out, size);
}

// The same, quantised at once for a linear layer: the numbers of rms_norm and then quantise_row (activations.h). `size`
// is a multiple of 32, `out` has row_groups(size) groups.
void rms_norm_quantise(const float *x, const float *weight, float eps, std::size_t size, ActivationGroup *out);

// Where the 16 gates and 16 ups of each block of outputs lie: side by side after a packed product of both, or each in a
// row of its own.
struct GateUp {
    const float *gate, *up;
    std::size_t block_stride;  // floats from one block of gates to the next

    static GateUp interleaved(const float *row) { return {row, row + 16, 32}; }
    static GateUp separate(const float *gate, const float *up) { return {gate, up, 16}; }
};

// out = activation(gate) * up for the blocks begin .. end - 1 of 16 outputs (Shazeer 2020). `out` points at the row's
// first output; it may be the row itself.
inline void gate(Activation activation, const GateUp &in, float *out, std::size_t begin, std::size_t end) {
    const std::size_t skipped = begin * in.block_stride;
    op_kernels().gate(activation, in.gate + skipped, in.up + skipped, in.block_stride, out + 16 * begin, end - begin);
}

// The same, quantised at once: groups begin .. end - 1 of 32 outputs. `out` points at the row's first group; whoever
// does the row's end calls zero_padding (activations.h) too.
void gate_quantise(Activation activation, const GateUp &in, std::size_t begin, std::size_t end, ActivationGroup *out);

// x += y, [size].
inline void add(float *x, const float *y, std::size_t size) { op_kernels().add(x, y, size); }

// Rotary position embedding (Su et al. 2021): angles by position. An angle is a float, position times frequency, as in
// training: far from position 0 that rounding is larger than any other in a model, so it is part of the definition.
class Rotary {
   public:
    // Frequencies [head_dim / 2]; `scale` is a factor on cos and sin.
    explicit Rotary(std::vector<float> frequencies, float scale) : frequencies_(std::move(frequencies)), scale_(scale) {}

    std::size_t size() const { return frequencies_.size(); }  // head_dim / 2
    // Writes scale * cos and scale * sin of the position's angles, [size()] each.
    void angles(std::int64_t position, float *cos, float *sin) const;

   private:
    std::vector<float> frequencies_;
    float scale_;
};

// What happens to a row of [q heads | k heads | v heads] between the projections and attention.
struct QkvShape {
    Pairing pairing;
    int num_heads, num_kv_heads, head_dim;
    const float *q_norm, *k_norm;  // [head_dim] weights of a norm of each head (Qwen 3, Gemma 3), or null
    float norm_eps;
};

// Norms and turns the heads of q in place; norms, turns and stores those of k, and stores v, as halves at `slot` of
// block `block_id` of the layer (layout: attention.h). The row's k is overwritten. Rows of different slots may run on
// different threads.
void rotate_and_store(const QkvShape &shape, float *row, const float *cos, const float *sin, std::uint16_t *keys,
                      std::uint16_t *values, std::size_t block_id, std::size_t slot);

// One row of an embedding table as the file holds it, times `scale`; `size` values, whole blocks of the format.
void embed(const BlockFormat &format, const std::uint8_t *table, std::size_t token_id, std::size_t size, float scale,
           float *out);

}  // namespace paceline
