#include "philox.h"

#include <cmath>

namespace paceline {

using std::uint32_t;
using std::uint64_t;

PhiloxWords philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
    auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t product_0 = uint64_t{c0} * 0xD2511F53u, product_1 = uint64_t{c2} * 0xCD9E8D57u;
        c0 = static_cast<uint32_t>(product_1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(product_1);
        c2 = static_cast<uint32_t>(product_0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(product_0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

double fixed_log(double x) {
    int exponent;
    double mantissa = std::frexp(x, &exponent);
    if (mantissa < 0.70710678118654752) {
        mantissa *= 2.0;
        --exponent;
    }
    // log m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.1716: the first term left out is below 2^-60 of the sum.
    const double distance = mantissa - 1.0, s = distance / (mantissa + 1.0), square = s * s;
    double series = 0.0;
    for (int odd = 21; odd >= 3; odd -= 2) series = (series + 1.0 / odd) * square;
    // 2 s = distance - s * distance keeps the bits that s alone has lost to its rounding.
    const double correction = s * distance - 2.0 * s * series;
    constexpr double high = 0.693147180369123816490, low = 1.90821492927058770002e-10;  // ln 2; 32 bits, and the rest
    return exponent * high - ((correction - exponent * low) - distance);
}

double gumbel_noise(const Draw &draw, uint32_t token_id) {
    const PhiloxWords out = philox(draw.output_index, token_id, draw.purpose, draw.salt, draw.seed);
    const uint64_t bits = uint64_t{out.words[0]} << 20 | out.words[1] >> 12;
    const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-52;
    return -fixed_log(-fixed_log(uniform));
}

}  // namespace paceline
