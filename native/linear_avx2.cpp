#if defined(__x86_64__)
#include <immintrin.h>

#include "linear_kernels.h"

namespace paceline {
namespace {

#include "linear_avx2.inl"

// Without VNNI, products of bytes are added in pairs to 16 bits, which saturate: two products of an unsigned byte and
// an int8 may reach 2 * 255 * 127. So weights are taken at their own size, and 8-bit ones as sign and magnitude.
struct Avx2 : Avx2Base {
    static constexpr bool scaled = false, signed_eight_bits = true;
    // Sums of 5 and 8 bits take two registers each.
    template <int bits>
    struct Tile {
        static constexpr std::size_t rows = bits == 4 || bits == 6 ? 6 : 4, paired_rows = rows;
    };
    template <int shift>
    static Bytes settle(Bytes v) {
        return _mm256_srli_epi16(v, shift);
    }  // the low bits are zeros
    template <int shift>
    static Floats settle_scale(Floats v) {
        return v;
    }
    static Bytes settle_eight_bits(Bytes v) { return _mm256_xor_si256(v, _mm256_set1_epi8(-128)); }

    // Else compilers make a tree of a chain of additions, whose leaves do not fit the registers.
    static Ints in_turn(Ints v) {
        __asm__("" : "+x"(v));
        return v;
    }
    static Ints widen(Ints pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

    template <int bits>
    struct DotInTurn {
        // Steps whose pairs fit 16 bits together: 4 bits give at most 8 * 2 * 15 * 127 = 30480, 5 bits 4 * 2 * 31 *
        // 127, magnitudes of 8 bits 2 * 128 * 127.
        static constexpr std::size_t run = bits == 4 ? 8 : bits == 5 ? 4 : 1;
        static constexpr bool begins_in_pairs = false;
        struct Sum {
            Ints total, pairs;
        };
        static Sum begin(Ints start) { return {start, _mm256_setzero_si256()}; }
        static void step(Sum &sum, Bytes weights, Ints inputs, std::size_t j) {
            const Ints products =
                bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights))
                          : _mm256_maddubs_epi16(weights, inputs);
            if (j % run) {
                sum.pairs = in_turn(_mm256_add_epi16(sum.pairs, products));
            } else {
                if (j) sum.total = in_turn(_mm256_add_epi32(sum.total, widen(sum.pairs)));
                sum.pairs = products;
            }
        }
        static Ints end(const Sum &sum) { return _mm256_add_epi32(sum.total, widen(sum.pairs)); }
    };

    // Four steps of 6 bits, whose pairs reach 4 * 2 * 63 * 127 and do not fit. With the offset of 32 taken away they do,
    // as 4 * 2 * 32 * 127 = 32512 at most, and additions of 16 bits may overflow on the way there, to both sides: the
    // end is right. So they begin at the offset's share, which is in `start_pairs`.
    struct DotInPairs {
        using Sum = Ints;
        static constexpr bool begins_in_pairs = true;
        static Sum begin(Ints start) { return start; }
        static void step(Sum &sum, Bytes weights, Ints inputs, std::size_t) {
            sum = in_turn(_mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, inputs)));
        }
        static Ints end(Sum sum) { return _mm256_add_epi32(widen(sum), _mm256_set1_epi32(magic_bits)); }
    };

    template <int bits>
    using Dot = std::conditional_t<bits == 6, DotInPairs, DotInTurn<bits>>;
};

#include "linear_kernels.inl"

}  // namespace

const LinearKernels linear_avx2{few_of<Avx2>, many_of<Avx2>};

}  // namespace paceline
#endif
