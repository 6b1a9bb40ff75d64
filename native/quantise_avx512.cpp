#if defined(__x86_64__)
#include <immintrin.h>

#include "quantise.h"
#include "quantise_x86.h"

namespace paceline {

// The steps are those of quantise_portable.cpp; the conversion rounds to the nearest integer, ties to even.
void quantise_groups_avx512(const float *x, std::size_t num_groups, ActivationGroup *out) {
    const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
    for (; num_groups; --num_groups, x += group_inputs, ++out) {
        const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        const __m512i low_magnitudes = _mm512_and_si512(_mm512_castps_si512(low), magnitude_bits);
        const __m512i high_magnitudes = _mm512_and_si512(_mm512_castps_si512(high), magnitude_bits);
        const std::int32_t largest = _mm512_reduce_max_epi32(_mm512_max_epi32(low_magnitudes, high_magnitudes));
        if (largest > largest_magnitude) {
            quantise_groups_portable(x, 1, out);
            continue;
        }
        const float scale = scale_of(largest);
        const __m512 inverse = _mm512_set1_ps(1.0f / scale);
        const __m512i low_q = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
        const __m512i high_q = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        const __m256i q = _mm256_set_m128i(_mm512_cvtepi32_epi8(high_q), _mm512_cvtepi32_epi8(low_q));
        _mm256_store_si256(reinterpret_cast<__m256i *>(out->q), q);
        finish_group(scale, _mm512_reduce_add_epi32(low_q), _mm512_reduce_add_epi32(high_q), out);
        write_start_pairs(q, out);
    }
}

}  // namespace paceline
#endif
