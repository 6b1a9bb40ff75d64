// What the quantisers with AVX2 and more share; included by files that are compiled for it.
#pragma once

#include <immintrin.h>

#include "activations.h"

namespace paceline {

// Writes a group's `start_pairs`.
static inline void write_start_pairs(__m256i q, ActivationGroup *out) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    __m256i sums = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1));
    const __m256i starts = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(sums, 5));
    const std::int32_t halves[2] = {_mm256_extract_epi32(starts, 0), _mm256_extract_epi32(starts, 4)};
    static_assert(sizeof halves == sizeof out->start_pairs);
    __builtin_memcpy(out->start_pairs, halves, sizeof halves);
}

}  // namespace paceline
