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
    static constexpr std::size_t lanes = 16, max_rows = 4, panel_columns = 1, panel_rows = 4;
    static constexpr bool scaled = true;

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
    template <int shift>
    static Bytes settle(const Bytes &v) {
        return v;
    }
    template <int shift>
    static Floats settle_scale(const Floats &v) {
        return floats([&](std::size_t i) { return v.v[i] * (1.0f / (1 << shift)); });
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
    struct Four {
        std::int8_t v[4];
    };
    static Four broadcast4(const std::int8_t *q) { return {{q[0], q[1], q[2], q[3]}}; }
    static Floats less(const Ints &v, const float &magic) {
        return floats([&](std::size_t i) {
            float value;
            __builtin_memcpy(&value, &v.v[i], sizeof value);
            return value - magic;
        });
    }

    template <int bits>
    struct Dot {
        using Sum = Ints;
        static Sum begin(const Ints &start) { return start; }
        static void step(Sum &sum, const Bytes &weights, const Four &inputs, std::size_t) {
            for (std::size_t i = 0; i < 16; ++i) {
                const std::uint8_t *w = weights.v + 4 * i;
                sum.v[i] += w[0] * inputs.v[0] + w[1] * inputs.v[1] + w[2] * inputs.v[2] + w[3] * inputs.v[3];
            }
        }
        static Ints end(const Sum &sum) { return sum; }
        template <std::size_t n>
        static Ints sum(Ints sum, const Bytes *weights, const std::int8_t *q) {
            for (std::size_t j = 0; j < n; ++j) step(sum, weights[j], broadcast4(q + 4 * j), j);
            return sum;
        }
    };
};

#include "linear_kernels.inl"

}  // namespace

const LinearKernels linear_portable{few_of<Portable>, many_of<Portable>};

}  // namespace paceline
