// One function a group of kernels; each adds its names to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace paceline {

void bind_runtime(nanobind::module_ &module);  // instruction sets and threads
void bind_linear(nanobind::module_ &module);   // activations, packed weights, linear layers
void bind_ops(nanobind::module_ &module);      // norms, rotary, attention, gates, embedding
void bind_sampling(nanobind::module_ &module);  // arg-max, truncation, seeded samples
void bind_model(nanobind::module_ &module);  // whole decoders

}  // namespace paceline
