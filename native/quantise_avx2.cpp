#if defined(__x86_64__)
#include <immintrin.h>

#include "quantise.h"

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
        std::int32_t exponent = ((largest_of(largest) + round_up_above_127) >> 23) - 6;
        if (exponent > max_scale_exponent) {
            quantise_groups_portable(x, 1, out);
            continue;
        }
        exponent = exponent < min_scale_exponent ? min_scale_exponent : exponent;
        const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((254 - exponent) << 23));
        __m256i q[4];
        for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        _mm256_store_si256(reinterpret_cast<__m256i *>(out->q), _mm256_permutevar8x32_epi32(packed, in_order));
        const std::int32_t low_sum = sum_of(_mm256_add_epi32(q[0], q[1]));
        const std::int32_t high_sum = sum_of(_mm256_add_epi32(q[2], q[3]));
        const std::int32_t magic = (exponent + 23) << 23 | magic_mantissa;
        const std::int32_t scale = exponent << 23;
        __builtin_memcpy(&out->magic, &magic, sizeof magic);
        out->start32 = magic - 128 * (low_sum + high_sum);
        out->start16[0] = magic - 128 * low_sum;
        out->start16[1] = magic - 128 * high_sum;
        __builtin_memcpy(&out->scale, &scale, sizeof scale);
        out->sum = out->scale * static_cast<float>(low_sum + high_sum);
        out->padding[0] = out->padding[1] = 0;
    }
}

}  // namespace paceline
#endif
