// Passes over rows of logits in plain C++.
#include "sampling_table.h"
#include "simd_portable.h"
// After those, whose names they use.
#include "simd_math.h"

#include "sampling_kernels.inl"

namespace paceline {

const SamplingKernels sampling_portable = {row_kernels<float>(), row_kernels<double>(), exp_all};

}  // namespace paceline
