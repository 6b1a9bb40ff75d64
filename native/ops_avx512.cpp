// The operators in AVX-512.
#if defined(__AVX512F__)
#include "ops_table.h"
#include "simd_avx512.h"
// After those, whose names they use.
#include "simd_math.h"

#include "ops_kernels.inl"

#include "attention_kernels.inl"

namespace paceline {

const OpKernels ops_avx512 = {rms_factor, scale, gate, add, rotate, store_key, store_value, attend, merge, divide};

}  // namespace paceline
#endif
