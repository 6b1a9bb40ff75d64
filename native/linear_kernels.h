// The linear kernels of each instruction set; use linear.h. Declarations only: files compiled for an instruction set
// include this.
//
// For every output the floating-point operations and their order are the same whichever kernel runs and however many
// rows go with it: over the groups of 32 inputs in turn, acc = acc + scale * (integer products), then acc = acc -
// minimum * sum (or the second scale's half). Integer products are exact, so only that order matters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "activations.h"
#include "layout.h"

namespace paceline {

// Rows of activations: row m begins at groups + m * stride.
struct Activations {
    const ActivationGroup *groups;
    std::size_t stride;
};

inline constexpr std::size_t max_few_rows = 8;
inline constexpr std::size_t panel_blocks = 2;  // blocks that a `many` kernel works on
inline constexpr std::size_t panel_outputs = panel_blocks * block_rows;
inline constexpr std::size_t panel_inputs = 512;  // inputs that it unpacks at a time, at most
inline constexpr std::size_t panel_bytes = panel_blocks * panel_inputs / 32 * (8 + 2) * vector_bytes;

struct LinearKernels {
    // A panel of one or two blocks times up to 8 rows, for work that waits for memory: weights are unpacked in registers
    // and used once for all rows. y is [num_rows, 32].
    void (*few)(Format format, const std::uint8_t *const *blocks, std::size_t num_blocks, std::size_t num_units,
                Activations x, std::size_t num_rows, float *y);

    // A panel, some units of it, times any number of rows, for work that waits for arithmetic:
    // weights are unpacked once to `scratch` (panel_bytes, 64-byte aligned), which stays in the first-level cache.
    // Adds to acc [num_rows, 32].
    void (*many)(Format format, const std::uint8_t *const *units, std::size_t num_blocks, std::size_t num_units,
                 Activations x, std::size_t num_rows, float *acc, std::uint8_t *scratch);
};

extern const LinearKernels linear_portable;
extern const LinearKernels linear_avx2;
extern const LinearKernels linear_avx2_vnni;
extern const LinearKernels linear_avx512;

}  // namespace paceline
