#if defined(__x86_64__)
#include <immintrin.h>

#include "linear_kernels.h"

namespace paceline {
namespace {

struct Avx512 {
    using Bytes = __m512i;
    using Ints = __m512i;
    using Floats = __m512;
    static constexpr std::size_t lanes = 16, panel_columns = 2, panel_rows = 6;
    template <int>
    struct Tile {
        static constexpr std::size_t rows = 8, paired_rows = 4;
    };
    static constexpr bool scaled = true, signed_eight_bits = false;

    static Bytes load_bytes(const std::uint8_t *p) { return _mm512_loadu_si512(p); }
    static void store_bytes(std::uint8_t *p, Bytes v) { _mm512_storeu_si512(p, v); }
    static Bytes mask(Bytes v, int byte) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(byte))); }
    // Shifts of 16 bits: what crosses into the neighbouring byte is masked away by the caller.
    template <int n>
    static Bytes left(Bytes v) {
        return _mm512_slli_epi16(v, n);
    }
    template <int n>
    static Bytes right(Bytes v) {
        return _mm512_srli_epi16(v, n);
    }
    // Bits of `a` where `byte` has ones, else of `b`.
    template <int byte>
    static Bytes select(Bytes a, Bytes b) {
        return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(byte)), a, b, 0xca);
    }
    template <int shift>
    static Bytes settle(Bytes v) {
        return v;
    }
    template <int shift>
    static Floats settle_scale(Floats v) {
        return _mm512_mul_ps(v, _mm512_set1_ps(1.0f / (1 << shift)));
    }
    static Bytes settle_eight_bits(Bytes v) { return v; }

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats load(const float *p) { return _mm512_loadu_ps(p); }
    static void store(float *p, Floats v) { _mm512_storeu_ps(p, v); }
    static Floats load_halves(const std::uint8_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static Floats load_unsigned(const std::uint8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static Floats load_signed(const std::uint8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats subtract_product(Floats a, const float &b, Floats c) {
        return _mm512_fnmadd_ps(a, _mm512_set1_ps(b), c);
    }

    static Ints broadcast(std::int32_t v) { return _mm512_set1_epi32(v); }
    static Ints broadcast4(const std::int8_t *q) {
        std::int32_t four;
        __builtin_memcpy(&four, q, sizeof four);
        return _mm512_set1_epi32(four);
    }
    static Floats scale_sum(Ints v, const ActivationGroup &row) {
        return _mm512_fmsub_ps(_mm512_castsi512_ps(v), _mm512_set1_ps(row.scale), _mm512_set1_ps(row.scaled_magic));
    }

    template <int bits>
    struct Dot {
        using Sum = Ints;
        static constexpr bool begins_in_pairs = false;
        static Sum begin(Ints start) { return start; }
        static void step(Sum &sum, Bytes weights, Ints inputs, std::size_t) {
            sum = _mm512_dpbusd_epi32(sum, weights, inputs);
        }
        static Ints end(Sum sum) { return sum; }
    };
};

#include "linear_kernels.inl"

}  // namespace

const LinearKernels linear_avx512{few_of<Avx512>, many_of<Avx512>};

}  // namespace paceline
#endif
