#if defined(__x86_64__)
#include <immintrin.h>

#include "quantise.h"
#include "quantise_x86.h"

namespace paceline {
namespace {

__m128i both_halves(__m256i v, __m128i (*combine)(__m128i, __m128i)) {
    return combine(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

std::int32_t largest_of(__m256i v) {
    __m128i m = both_halves(v, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

std::int32_t sum_of(__m256i v) {
    __m128i s = both_halves(v, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

}  // namespace

// The steps are those of quantise_portable.cpp; the conversion rounds to the nearest integer, ties to even.
void quantise_groups_avx2(const float *x, std::size_t num_groups, ActivationGroup *out) {
    const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
    // Packing works on 128-bit halves and leaves runs of four values in the order 0 2 4 6 1 3 5 7.
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (; num_groups; --num_groups, x += group_inputs, ++out) {
        __m256 values[4];
        __m256i largest = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) {
            values[i] = _mm256_loadu_ps(x + 8 * i);
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(values[i]), magnitude_bits));
        }
        const std::int32_t magnitude = largest_of(largest);
        if (magnitude > largest_magnitude) {
            quantise_groups_portable(x, 1, out);
            continue;
        }
        const float scale = scale_of(magnitude);
        const __m256 inverse = _mm256_set1_ps(1.0f / scale);
        __m256i q[4];
        for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        const __m256i ordered = _mm256_permutevar8x32_epi32(packed, in_order);
        _mm256_store_si256(reinterpret_cast<__m256i *>(out->q), ordered);
        finish_group(scale, sum_of(_mm256_add_epi32(q[0], q[1])), sum_of(_mm256_add_epi32(q[2], q[3])), out);
        write_start_pairs(ordered, out);
    }
}

}  // namespace paceline
#endif
