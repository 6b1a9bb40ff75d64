// Passes over rows of logits in AVX2 and FMA.
#if defined(__AVX2__)
#include "sampling_table.h"
#include "simd_avx2.h"
// After those, whose names they use.
#include "simd_math.h"

#include "sampling_kernels.inl"

namespace paceline {

const SamplingKernels sampling_avx2 = {row_kernels<float>(), row_kernels<double>(), exp_all};

}  // namespace paceline
#endif
