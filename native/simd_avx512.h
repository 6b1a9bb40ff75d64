// The names of simd_portable.h for AVX-512 F, BW, DQ and VL. See there.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define PACELINE_INLINE static inline __attribute__((always_inline))

namespace paceline {
namespace {

typedef __m512 Floats;
typedef __m512d Doubles;
typedef __m512i Words;

// 24 running sums, 4 vectors of keys or values, and some to spare of the 32 registers.
constexpr int tile_queries = 6, tile_vectors = 4;

PACELINE_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

PACELINE_INLINE Floats all(float x) { return _mm512_set1_ps(x); }
PACELINE_INLINE Floats load(const float *p) { return _mm512_loadu_ps(p); }
PACELINE_INLINE Floats load_first(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
PACELINE_INLINE void store(float *p, Floats x) { _mm512_storeu_ps(p, x); }
PACELINE_INLINE void store_first(float *p, Floats x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
PACELINE_INLINE Floats load_half(const std::uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
PACELINE_INLINE Floats load_eight_halves(const std::uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}
PACELINE_INLINE void store_half(std::uint16_t *p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

PACELINE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
PACELINE_INLINE Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
PACELINE_INLINE Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
PACELINE_INLINE Floats round_to_whole(Floats x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
PACELINE_INLINE Floats times_power_of_two(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
PACELINE_INLINE Floats zero_where_less(Floats x, Floats a, Floats b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
}
PACELINE_INLINE Floats keep_lanes(Floats x, int first, int end, float otherwise) {
    const __mmask16 kept = static_cast<__mmask16>(first_lanes(end) & ~first_lanes(first));
    return _mm512_mask_mov_ps(_mm512_set1_ps(otherwise), kept, x);
}
PACELINE_INLINE float sum(Floats x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
PACELINE_INLINE float greatest(Floats x) { return _mm512_reduce_max_ps(x); }
PACELINE_INLINE unsigned lanes_greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
PACELINE_INLINE unsigned lanes_nan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }

PACELINE_INLINE Doubles all_doubles(double x) { return _mm512_set1_pd(x); }
PACELINE_INLINE Doubles load_doubles(const double *p) { return _mm512_loadu_pd(p); }
PACELINE_INLINE Doubles load_doubles(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
PACELINE_INLINE void store_doubles(double *p, Doubles x) { _mm512_storeu_pd(p, x); }
PACELINE_INLINE Doubles fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
PACELINE_INLINE Doubles maximum(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
PACELINE_INLINE Doubles round_to_whole(Doubles x) {
    return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
PACELINE_INLINE Doubles times_power_of_two(Doubles x, Doubles n) { return _mm512_scalef_pd(x, n); }
PACELINE_INLINE Doubles zero_where_less(Doubles x, Doubles a, Doubles b) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a, b, _CMP_NLT_UQ), x);
}
PACELINE_INLINE double sum(Doubles x) {
    const __m256d a = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    const __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}
PACELINE_INLINE unsigned lanes_not_less(Doubles a, Doubles b) { return _mm512_cmp_pd_mask(a, b, _CMP_GE_OQ); }

PACELINE_INLINE Words all_words(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
PACELINE_INLINE Words counting_from(std::uint64_t x) {
    return _mm512_add_epi64(all_words(x), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
PACELINE_INLINE Words times_low(Words a, Words b) { return _mm512_mul_epu32(a, b); }
PACELINE_INLINE Words high_half(Words a) { return _mm512_srli_epi64(a, 32); }
PACELINE_INLINE Words exclusive_or(Words a, Words b, Words c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
PACELINE_INLINE Floats complement_of_low(Words a, Words b) {
    const __m512i low =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b), 1);
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_xor_si512(low, _mm512_set1_epi32(-1)), 1));
}

}  // namespace
}  // namespace paceline
