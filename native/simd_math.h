// Exponentials on the vectors of the simd_*.h file included before this one.
#pragma once

namespace paceline {
namespace {

// exp(x) within 1.1 units in the last place; exactly 0 below -87.33 (where results would be subnormal) and for minus
// infinity; not a number stays so; above 88.37, exp(88.37). Polynomial: relative minimax on half an octave.
PACELINE_INLINE Floats exp(Floats x) {
    const Floats lowest = all(-87.33f);
    const Floats clamped = minimum(all(88.37f), maximum(lowest, x));  // a NaN is the second operand, and stays
    const Floats n = round_to_whole(clamped * all(1.44269504f));
    Floats r = fma(n, all(-0.693145751953125f), clamped);  // ln 2 in two parts; n times the first one is exact
    r = fma(n, all(-1.42860677e-6f), r);
    Floats p = all(0.0013814599f);
    p = fma(p, r, all(0.008368717f));
    p = fma(p, r, all(0.04166839f));
    p = fma(p, r, all(0.16666521f));
    p = fma(p, r, all(0.49999994f));
    p = fma(p * r, r, r) + all(1.0f);
    return zero_where_less(times_power_of_two(p, n), x, lowest);
}

// exp(x) for x <= 0 within 2 units in the last place; exactly 0 below -708; exp(0) is exactly 1. Taylor's series on
// half an octave: the first term left out is below 2^-57.
PACELINE_INLINE Doubles exp(Doubles x) {
    const Doubles lowest = all_doubles(-708.0);
    const Doubles clamped = maximum(lowest, x);
    const Doubles n = round_to_whole(clamped * all_doubles(1.4426950408889634));
    Doubles r = fma(n, all_doubles(-0.693147180369123816490), clamped);  // 32 bits of ln 2, then the rest
    r = fma(n, all_doubles(-1.90821492927058770002e-10), r);
    Doubles p = all_doubles(1.0 / 6227020800.0);
    p = fma(p, r, all_doubles(1.0 / 479001600.0));
    p = fma(p, r, all_doubles(1.0 / 39916800.0));
    p = fma(p, r, all_doubles(1.0 / 3628800.0));
    p = fma(p, r, all_doubles(1.0 / 362880.0));
    p = fma(p, r, all_doubles(1.0 / 40320.0));
    p = fma(p, r, all_doubles(1.0 / 5040.0));
    p = fma(p, r, all_doubles(1.0 / 720.0));
    p = fma(p, r, all_doubles(1.0 / 120.0));
    p = fma(p, r, all_doubles(1.0 / 24.0));
    p = fma(p, r, all_doubles(1.0 / 6.0));
    p = fma(p, r, all_doubles(0.5));
    p = fma(p * r, r, r) + all_doubles(1.0);
    return zero_where_less(times_power_of_two(p, n), x, lowest);
}

}  // namespace
}  // namespace paceline
