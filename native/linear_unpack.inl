// How each format of layout.h unpacks, for any `Simd` (linear_kernels.inl). An Unpack is given a unit and gives its
// groups; weights come out unsigned, those with an offset shifted up so that it is 128 (by `shift` bits; scales are
// divided by 2^shift, exactly), and `Simd::settle` brings them to what its products can hold.

// Four vectors from three: six bits of each where `low` is 0x3f or 0xfc, and the fourth from the bits left over.
template <class Simd>
inline void three_to_four(const std::uint8_t *three, typename Simd::Bytes *four, std::size_t stride, bool upper) {
    const auto a = Simd::load_bytes(three), b = Simd::load_bytes(three + stride),
               c = Simd::load_bytes(three + 2 * stride);
    if (upper) {
        four[0] = Simd::mask(a, 0xfc);
        four[1] = Simd::mask(b, 0xfc);
        four[2] = Simd::mask(c, 0xfc);
        const auto low = Simd::template select<0x0c>(Simd::template left<2>(a), Simd::template left<4>(b));
        four[3] = Simd::mask(Simd::template select<0xc0>(Simd::template left<6>(c), low), 0xfc);
    } else {
        four[0] = Simd::mask(a, 0x3f);
        four[1] = Simd::mask(b, 0x3f);
        four[2] = Simd::mask(c, 0x3f);
        const auto low = Simd::template select<0x03>(Simd::template right<6>(a), Simd::template right<4>(b));
        four[3] = Simd::mask(Simd::template select<0x30>(Simd::template right<2>(c), low), 0x3f);
    }
}

// Bytes from the start of a 64-byte vector, of an array of 16 halves, of an array of 16 bytes, to a part's share of it.
template <class Simd>
constexpr std::size_t in_vector(std::size_t part) {
    return part * Simd::lanes * 4;
}
template <class Simd>
constexpr std::size_t in_halves(std::size_t part) {
    return part * Simd::lanes * 2;
}
template <class Simd>
constexpr std::size_t in_bytes(std::size_t part) {
    return part * Simd::lanes;
}

template <class Simd>
inline void nibbles(const std::uint8_t *vectors, typename Simd::Bytes *weights) {
    for (std::size_t j = 0; j < 4; ++j) {
        const auto both = Simd::load_bytes(vectors + vector_bytes * j);
        weights[j] = Simd::mask(both, 0x0f);
        weights[j + 4] = Simd::mask(Simd::template right<4>(both), 0x0f);
    }
}

template <class Simd>
struct UnpackQ4K {
    static constexpr Kind kind = Kind::minimum;
    static constexpr std::size_t groups = 8, unit_bytes = layout_of(Format::q4_k).unit_bytes;
    static constexpr int shift = 0, bits = 4;
    static constexpr std::size_t parts = block_rows / Simd::lanes;

    void load(const std::uint8_t *from) {
        unit = from;
        for (std::size_t at = 0; at < vector_bytes; at += sizeof(typename Simd::Bytes)) {
            typename Simd::Bytes four[4];
            three_to_four<Simd>(unit + 64 + at, four, vector_bytes, false);
            for (std::size_t i = 0; i < 4; ++i) Simd::store_bytes(six_bits + vector_bytes * i + at, four[i]);
        }
        for (std::size_t part = 0; part < parts; ++part) {
            d[part] = Simd::load_halves(unit + in_halves<Simd>(part));
            dmin[part] = Simd::load_halves(unit + 32 + in_halves<Simd>(part));
        }
    }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        nibbles<Simd>(unit + 256 + 256 * g + in_vector<Simd>(part), out.weights);
        const std::uint8_t *scales = six_bits + 16 * g + in_bytes<Simd>(part);
        out.scale = Simd::multiply(d[part], Simd::load_unsigned(scales));
        out.second = Simd::multiply(dmin[part], Simd::load_unsigned(scales + 128));
    }

    const std::uint8_t *unit;
    alignas(64) std::uint8_t six_bits[256];
    typename Simd::Floats d[parts], dmin[parts];
};

template <class Simd>
struct UnpackQ6K {
    static constexpr Kind kind = Kind::halves;
    static constexpr std::size_t groups = 8, unit_bytes = layout_of(Format::q6_k).unit_bytes;
    static constexpr int shift = 2, bits = 6;
    static constexpr std::size_t parts = block_rows / Simd::lanes;

    void load(const std::uint8_t *from) {
        unit = from;
        for (std::size_t part = 0; part < parts; ++part)
            d[part] = Simd::template settle_scale<shift>(Simd::load_halves(unit + in_halves<Simd>(part)));
    }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        const std::uint8_t *vectors = unit + 320 + 384 * g + in_vector<Simd>(part);
        three_to_four<Simd>(vectors, out.weights, vector_bytes, true);
        three_to_four<Simd>(vectors + 3 * vector_bytes, out.weights + 4, vector_bytes, true);
        for (auto &weight : out.weights) weight = Simd::template settle<shift>(weight);
        const std::uint8_t *scales = unit + 64 + 32 * g + in_bytes<Simd>(part);
        out.scale = Simd::multiply(d[part], Simd::load_signed(scales));
        out.second = Simd::multiply(d[part], Simd::load_signed(scales + 16));
    }

    const std::uint8_t *unit;
    typename Simd::Floats d[parts];
};

template <class Simd>
struct UnpackQ40 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q4_0).unit_bytes;
    static constexpr int shift = 4, bits = 4;

    void load(const std::uint8_t *from) { unit = from; }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        const std::uint8_t *vectors = unit + 64 + 256 * g + in_vector<Simd>(part);
        for (std::size_t j = 0; j < 4; ++j) {
            const auto both = Simd::load_bytes(vectors + vector_bytes * j);
            out.weights[j] = Simd::template settle<shift>(Simd::mask(Simd::template left<4>(both), 0xf0));
            out.weights[j + 4] = Simd::template settle<shift>(Simd::mask(both, 0xf0));
        }
        out.scale = Simd::template settle_scale<shift>(Simd::load_halves(unit + 32 * g + in_halves<Simd>(part)));
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ41 {
    static constexpr Kind kind = Kind::minimum;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q4_1).unit_bytes;
    static constexpr int shift = 0, bits = 4;

    void load(const std::uint8_t *from) { unit = from; }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        nibbles<Simd>(unit + 128 + 256 * g + in_vector<Simd>(part), out.weights);
        out.scale = Simd::load_halves(unit + 64 * g + in_halves<Simd>(part));
        out.second = Simd::load_halves(unit + 64 * g + 32 + in_halves<Simd>(part));
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ50 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q5_0).unit_bytes;
    static constexpr int shift = 3, bits = 5;

    void load(const std::uint8_t *from) { unit = from; }

    // The nibble goes to bits 3 to 6, the top bit, bit `j` of its byte, to bit 7.
    template <std::size_t j>
    static typename Simd::Bytes join(typename Simd::Bytes low, typename Simd::Bytes tops) {
        const auto rest = Simd::mask(low, 0x78);
        return Simd::template settle<shift>(Simd::template select<0x80>(Simd::template left<7 - j>(tops), rest));
    }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        const std::uint8_t *vectors = unit + 64 + 320 * g + in_vector<Simd>(part);
        const auto tops = Simd::load_bytes(vectors + 4 * vector_bytes);
        typename Simd::Bytes low[4], high[4];
        for (std::size_t j = 0; j < 4; ++j) {
            const auto both = Simd::load_bytes(vectors + vector_bytes * j);
            low[j] = Simd::template left<3>(both);
            high[j] = Simd::template right<1>(both);
        }
        out.weights[0] = join<0>(low[0], tops);
        out.weights[1] = join<1>(low[1], tops);
        out.weights[2] = join<2>(low[2], tops);
        out.weights[3] = join<3>(low[3], tops);
        out.weights[4] = join<4>(high[0], tops);
        out.weights[5] = join<5>(high[1], tops);
        out.weights[6] = join<6>(high[2], tops);
        out.weights[7] = join<7>(high[3], tops);
        out.scale = Simd::template settle_scale<shift>(Simd::load_halves(unit + 32 * g + in_halves<Simd>(part)));
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ80 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q8_0).unit_bytes;
    static constexpr int shift = 0, bits = 8;

    void load(const std::uint8_t *from) { unit = from; }

    void group(std::size_t g, std::size_t part, Group<Simd> &out) const {
        const std::uint8_t *vectors = unit + 64 + 512 * g + in_vector<Simd>(part);
        for (std::size_t j = 0; j < 8; ++j)
            out.weights[j] = Simd::settle_eight_bits(Simd::load_bytes(vectors + vector_bytes * j));
        out.scale = Simd::load_halves(unit + 32 * g + in_halves<Simd>(part));
    }

    const std::uint8_t *unit;
};
