// The operators in AVX2, FMA and F16C.
#if defined(__AVX2__)
#include "ops_table.h"
#include "simd_avx2.h"
// After those, whose names they use.
#include "simd_math.h"

#include "ops_kernels.inl"

#include "attention_kernels.inl"

namespace paceline {

const OpKernels ops_avx2 = {rms_factor, scale, gate, add, rotate, store_key, store_value, attend, merge, divide};

}  // namespace paceline
#endif
