// The names of simd_portable.h for AVX2, FMA and F16C: pairs of 256-bit registers. See there.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define PACELINE_INLINE static inline __attribute__((always_inline))

namespace paceline {
namespace {

struct Floats {
    __m256 low, high;
};
struct Doubles {
    __m256d low, high;
};
struct Words {
    __m256i low, high;
};

// 6 running sums of two registers each, and their operands, in 16 registers.
constexpr int tile_queries = 6, tile_vectors = 1;

PACELINE_INLINE Floats operator+(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
PACELINE_INLINE Floats operator-(Floats a, Floats b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
PACELINE_INLINE Floats operator*(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
PACELINE_INLINE Floats operator/(Floats a, Floats b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
PACELINE_INLINE Doubles operator+(Doubles a, Doubles b) {
    return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
}
PACELINE_INLINE Doubles operator-(Doubles a, Doubles b) {
    return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
}
PACELINE_INLINE Doubles operator*(Doubles a, Doubles b) {
    return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)};
}
PACELINE_INLINE Doubles operator/(Doubles a, Doubles b) {
    return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)};
}

// Eight lanes, all bits set in those from `first` up to `end` - 1.
PACELINE_INLINE __m256i lane_mask(int first, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
}

PACELINE_INLINE Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PACELINE_INLINE Floats load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PACELINE_INLINE Floats load_first(const float *p, int n) {
    return {_mm256_maskload_ps(p, lane_mask(0, n)), _mm256_maskload_ps(p + 8, lane_mask(0, n - 8))};
}
PACELINE_INLINE void store(float *p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
PACELINE_INLINE void store_first(float *p, Floats x, int n) {
    _mm256_maskstore_ps(p, lane_mask(0, n), x.low);
    _mm256_maskstore_ps(p + 8, lane_mask(0, n - 8), x.high);
}
PACELINE_INLINE Floats load_half(const std::uint16_t *p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 8)))};
}
PACELINE_INLINE Floats load_eight_halves(const std::uint16_t *p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), _mm256_setzero_ps()};
}
PACELINE_INLINE void store_half(std::uint16_t *p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p + 8), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}

PACELINE_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
PACELINE_INLINE Floats maximum(Floats a, Floats b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
PACELINE_INLINE Floats minimum(Floats a, Floats b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
PACELINE_INLINE Floats round_to_whole(Floats x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
PACELINE_INLINE __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
PACELINE_INLINE Floats times_power_of_two(Floats x, Floats n) {
    return {_mm256_mul_ps(x.low, power_of_two(n.low)), _mm256_mul_ps(x.high, power_of_two(n.high))};
}
PACELINE_INLINE Floats zero_where_less(Floats x, Floats a, Floats b) {
    return {_mm256_and_ps(x.low, _mm256_cmp_ps(a.low, b.low, _CMP_NLT_UQ)),
            _mm256_and_ps(x.high, _mm256_cmp_ps(a.high, b.high, _CMP_NLT_UQ))};
}
PACELINE_INLINE Floats keep_lanes(Floats x, int first, int end, float otherwise) {
    const __m256 other = _mm256_set1_ps(otherwise);
    return {_mm256_blendv_ps(other, x.low, _mm256_castsi256_ps(lane_mask(first, end))),
            _mm256_blendv_ps(other, x.high, _mm256_castsi256_ps(lane_mask(first - 8, end - 8)))};
}
PACELINE_INLINE float sum(Floats x) {
    const __m256 a = _mm256_add_ps(x.low, x.high);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
PACELINE_INLINE float greatest(Floats x) {
    const __m256 a = _mm256_max_ps(x.low, x.high);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
PACELINE_INLINE unsigned bits_of(__m256 low, __m256 high) {
    return static_cast<unsigned>(_mm256_movemask_ps(low)) | static_cast<unsigned>(_mm256_movemask_ps(high)) << 8;
}
PACELINE_INLINE unsigned lanes_greater(Floats a, Floats b) {
    return bits_of(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}
PACELINE_INLINE unsigned lanes_nan(Floats a) {
    return bits_of(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q));
}

PACELINE_INLINE Doubles all_doubles(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
PACELINE_INLINE Doubles load_doubles(const double *p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
PACELINE_INLINE Doubles load_doubles(const float *p) {
    return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
}
PACELINE_INLINE void store_doubles(double *p, Doubles x) {
    _mm256_storeu_pd(p, x.low);
    _mm256_storeu_pd(p + 4, x.high);
}
PACELINE_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) {
    return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
PACELINE_INLINE Doubles maximum(Doubles a, Doubles b) {
    return {_mm256_max_pd(a.low, b.low), _mm256_max_pd(a.high, b.high)};
}
PACELINE_INLINE Doubles round_to_whole(Doubles x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_pd(x.low, mode), _mm256_round_pd(x.high, mode)};
}
PACELINE_INLINE __m256d power_of_two(__m256d n) {
    const __m256i exponent = _mm256_cvtepi32_epi64(_mm_add_epi32(_mm256_cvtpd_epi32(n), _mm_set1_epi32(1023)));
    return _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52));
}
PACELINE_INLINE Doubles times_power_of_two(Doubles x, Doubles n) {
    return {_mm256_mul_pd(x.low, power_of_two(n.low)), _mm256_mul_pd(x.high, power_of_two(n.high))};
}
PACELINE_INLINE Doubles zero_where_less(Doubles x, Doubles a, Doubles b) {
    return {_mm256_and_pd(x.low, _mm256_cmp_pd(a.low, b.low, _CMP_NLT_UQ)),
            _mm256_and_pd(x.high, _mm256_cmp_pd(a.high, b.high, _CMP_NLT_UQ))};
}
PACELINE_INLINE double sum(Doubles x) {
    const __m256d a = _mm256_add_pd(x.low, x.high);
    const __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}
PACELINE_INLINE unsigned lanes_not_less(Doubles a, Doubles b) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a.low, b.low, _CMP_GE_OQ))) |
           static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a.high, b.high, _CMP_GE_OQ))) << 4;
}

PACELINE_INLINE Words all_words(std::uint64_t x) {
    const __m256i word = _mm256_set1_epi64x(static_cast<long long>(x));
    return {word, word};
}
PACELINE_INLINE Words counting_from(std::uint64_t x) {
    const __m256i word = _mm256_set1_epi64x(static_cast<long long>(x));
    return {_mm256_add_epi64(word, _mm256_setr_epi64x(0, 1, 2, 3)),
            _mm256_add_epi64(word, _mm256_setr_epi64x(4, 5, 6, 7))};
}
PACELINE_INLINE Words times_low(Words a, Words b) {
    return {_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high)};
}
PACELINE_INLINE Words high_half(Words a) { return {_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)}; }
PACELINE_INLINE Words exclusive_or(Words a, Words b, Words c) {
    return {_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
            _mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high)};
}
PACELINE_INLINE __m256 complement_of_low(Words a) {
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i low = _mm256_inserti128_si256(_mm256_permutevar8x32_epi32(a.low, even),
                                                _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(a.high, even)), 1);
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_xor_si256(low, _mm256_set1_epi32(-1)), 1));
}
PACELINE_INLINE Floats complement_of_low(Words a, Words b) { return {complement_of_low(a), complement_of_low(b)}; }

}  // namespace
}  // namespace paceline
