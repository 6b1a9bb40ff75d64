#if defined(__x86_64__)
#include <immintrin.h>

#include "linear_kernels.h"

namespace paceline {
namespace {

#include "linear_avx2.inl"

struct Avx2Vnni : Avx2Base {
    static constexpr bool scaled = true, signed_eight_bits = false;
    template <int>
    struct Tile {
        static constexpr std::size_t rows = 6, paired_rows = 6;
    };
    template <int shift>
    static Bytes settle(Bytes v) {
        return v;
    }
    template <int shift>
    static Floats settle_scale(Floats v) {
        return _mm256_mul_ps(v, _mm256_set1_ps(1.0f / (1 << shift)));
    }
    static Bytes settle_eight_bits(Bytes v) { return v; }

    template <int bits>
    struct Dot {
        using Sum = Ints;
        static constexpr bool begins_in_pairs = false;
        static Sum begin(Ints start) { return start; }
        static void step(Sum &sum, Bytes weights, Ints inputs, std::size_t) {
            sum = _mm256_dpbusd_avx_epi32(sum, weights, inputs);
        }
        static Ints end(Sum sum) { return sum; }
    };
};

#include "linear_kernels.inl"

}  // namespace

const LinearKernels linear_avx2_vnni{few_of<Avx2Vnni>, many_of<Avx2Vnni>};

}  // namespace paceline
#endif
