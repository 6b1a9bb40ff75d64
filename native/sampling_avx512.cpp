// Passes over rows of logits in AVX-512.
#if defined(__AVX512F__)
#include "sampling_table.h"
#include "simd_avx512.h"
// After those, whose names they use.
#include "simd_math.h"

#include "sampling_kernels.inl"

namespace paceline {

const SamplingKernels sampling_avx512 = {row_kernels<float>(), row_kernels<double>(), exp_all};

}  // namespace paceline
#endif
