// Plain C++ in loops of fixed length, which compilers turn into whatever vectors the machine has.
#include "half.h"
#include "linear_kernels.h"

namespace paceline {
namespace {

struct Portable {
    struct Bytes {
        std::uint8_t v[64];
    };
    struct Ints {
        std::int32_t v[16];
    };
    struct Floats {
        float v[16];
    };
    static constexpr std::size_t lanes = 16, panel_columns = 1, panel_rows = 4;
    template <int>
    struct Tile {
        static constexpr std::size_t rows = 4, paired_rows = 0;
    };
    static constexpr bool scaled = false, signed_eight_bits = false;

    template <class Vector, class Value>
    static Vector each(Value value) {
        Vector out;
        for (std::size_t i = 0; i < sizeof out.v / sizeof out.v[0]; ++i) out.v[i] = value(i);
        return out;
    }
    template <class Value>
    static Bytes bytes(Value value) {
        return each<Bytes>([&](std::size_t i) { return static_cast<std::uint8_t>(value(i)); });
    }
    template <class Value>
    static Floats floats(Value value) {
        return each<Floats>([&](std::size_t i) { return static_cast<float>(value(i)); });
    }

    static Bytes load_bytes(const std::uint8_t *p) {
        return bytes([&](std::size_t i) { return p[i]; });
    }
    static void store_bytes(std::uint8_t *p, const Bytes &v) { __builtin_memcpy(p, v.v, sizeof v.v); }
    static Bytes mask(const Bytes &v, int byte) {
        return bytes([&](std::size_t i) { return v.v[i] & byte; });
    }
    template <int n>
    static Bytes left(const Bytes &v) {
        return bytes([&](std::size_t i) { return v.v[i] << n; });
    }
    template <int n>
    static Bytes right(const Bytes &v) {
        return bytes([&](std::size_t i) { return v.v[i] >> n; });
    }
    template <int byte>
    static Bytes select(const Bytes &a, const Bytes &b) {
        return bytes([&](std::size_t i) { return (a.v[i] & byte) | (b.v[i] & ~byte); });
    }
    static Bytes either(const Bytes &a, const Bytes &b) {
        return bytes([&](std::size_t i) { return a.v[i] | b.v[i]; });
    }
    template <int shift>
    static Bytes settle(const Bytes &v) {
        return bytes([&](std::size_t i) { return v.v[i] >> shift; });
    }
    template <int shift>
    static Floats settle_scale(const Floats &v) {
        return v;
    }
    static Bytes settle_eight_bits(const Bytes &v) { return v; }

    static Floats zero() { return Floats{}; }
    static Floats load(const float *p) {
        return floats([&](std::size_t i) { return p[i]; });
    }
    static void store(float *p, const Floats &v) { __builtin_memcpy(p, v.v, sizeof v.v); }
    static Floats load_halves(const std::uint8_t *p) {
        std::uint16_t halves[16];
        __builtin_memcpy(halves, p, sizeof halves);
        return floats([&](std::size_t i) { return float_of_half(halves[i]); });
    }
    static Floats load_unsigned(const std::uint8_t *p) {
        return floats([&](std::size_t i) { return p[i]; });
    }
    static Floats load_signed(const std::uint8_t *p) {
        return floats([&](std::size_t i) { return static_cast<std::int8_t>(p[i]); });
    }
    static Floats multiply(const Floats &a, const Floats &b) {
        return floats([&](std::size_t i) { return a.v[i] * b.v[i]; });
    }
    // Two roundings: without an instruction for it, a fused one would be a slow function call.
    static Floats multiply_add(const Floats &a, const Floats &b, const Floats &c) {
        return floats([&](std::size_t i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    static Floats subtract_product(const Floats &a, const float &b, const Floats &c) {
        return floats([&](std::size_t i) { return c.v[i] - a.v[i] * b; });
    }

    static Ints broadcast(std::int32_t value) {
        return each<Ints>([&](std::size_t) { return value; });
    }
    struct Inputs {
        std::int16_t v[8];
    };
    static Inputs broadcast4(const std::int8_t *q) { return {{q[0], q[1], q[2], q[3], q[0], q[1], q[2], q[3]}}; }
    // Two operations, but the first is exact: the same bits as the fused one.
    static Floats scale_sum(const Ints &v, const ActivationGroup &row) {
        return floats([&](std::size_t i) {
            float value;
            __builtin_memcpy(&value, &v.v[i], sizeof value);
            return (value - magic) * row.scale;
        });
    }

    // Products of each byte of a vector are added up in 16 bits, 64 sums side by side, and four neighbours to one in
    // the end: 8 steps of 4 or 5 bits give at most 8 * 31 * 127, 4 steps of 6 bits 4 * 63 * 127. Bytes are taken as two
    // halves.
    template <int bits>
    struct Dot {
        static constexpr bool begins_in_pairs = false;
        struct Sum {
            Ints start;
            std::int16_t low[64], high[bits == 8 ? 64 : 1];
        };
        static Sum begin(const Ints &start) { return {start, {}, {}}; }
        static void step(Sum &sum, const Bytes &weights, const Inputs &inputs, std::size_t) {
            for (std::size_t i = 0; i < 64; i += 8)
                for (std::size_t k = 0; k < 8; ++k) {
                    const int weight = bits == 8 ? weights.v[i + k] & 15 : weights.v[i + k];
                    sum.low[i + k] = static_cast<std::int16_t>(sum.low[i + k] + weight * inputs.v[k]);
                }
            if constexpr (bits == 8)
                for (std::size_t i = 0; i < 64; i += 8)
                    for (std::size_t k = 0; k < 8; ++k) {
                        const int weight = weights.v[i + k] >> 4;
                        sum.high[i + k] = static_cast<std::int16_t>(sum.high[i + k] + weight * inputs.v[k]);
                    }
        }
        static std::int32_t four(const std::int16_t *products) {
            return products[0] + products[1] + products[2] + products[3];
        }
        static Ints end(const Sum &sum) {
            return each<Ints>([&](std::size_t r) {
                const std::int32_t low = sum.start.v[r] + four(sum.low + 4 * r);
                if constexpr (bits == 8) {
                    return low + 16 * four(sum.high + 4 * r);
                } else {
                    return low;
                }
            });
        }
    };
};

#include "linear_kernels.inl"

}  // namespace

const LinearKernels linear_portable{few_of<Portable>, many_of<Portable>};

}  // namespace paceline
