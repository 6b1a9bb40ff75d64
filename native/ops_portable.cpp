// The operators in plain C++.
#include "ops_table.h"
#include "simd_portable.h"
// After those, whose names they use.
#include "simd_math.h"

#include "ops_kernels.inl"

#include "attention_kernels.inl"

namespace paceline {

const OpKernels ops_portable = {rms_factor, scale, gate, add, rotate, store_key, store_value, attend, merge, divide};

}  // namespace paceline
