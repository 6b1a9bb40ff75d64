// How each format of layout.h unpacks, for any `Simd` (linear_kernels.inl). An Unpack is given a unit and gives its
// groups; weights come out unsigned, those with an offset shifted up so that it is 128 (by `shift` bits; scales are
// divided by 2^shift, exactly), and `Simd::settle` brings them to what its products can hold.

// Vector j of four that lie in three: six bits of each, the upper ones where `upper`, and the fourth from the bits left.
template <class Simd, bool upper, std::size_t j>
inline typename Simd::Bytes one_of_four(const std::uint8_t *three, std::size_t stride) {
    if constexpr (j < 3) {
        return Simd::mask(Simd::load_bytes(three + j * stride), upper ? 0xfc : 0x3f);
    } else {
        const auto a = Simd::load_bytes(three), b = Simd::load_bytes(three + stride),
                   c = Simd::load_bytes(three + 2 * stride);
        if constexpr (upper) {
            const auto low = Simd::template select<0x0c>(Simd::template left<2>(a), Simd::template left<4>(b));
            return Simd::mask(Simd::template select<0xc0>(Simd::template left<6>(c), low), 0xfc);
        } else {
            const auto low = Simd::template select<0x03>(Simd::template right<6>(a), Simd::template right<4>(b));
            return Simd::mask(Simd::template select<0x30>(Simd::template right<2>(c), low), 0x3f);
        }
    }
}

// The same by their upper six bits, shifted down: fewer instructions where the weights are wanted so.
template <class Simd, std::size_t j>
inline typename Simd::Bytes upper_of_four_down(const std::uint8_t *three, std::size_t stride) {
    if constexpr (j < 3) {
        return Simd::mask(Simd::template right<2>(Simd::load_bytes(three + j * stride)), 0x3f);
    } else {
        const auto a = Simd::load_bytes(three), b = Simd::load_bytes(three + stride),
                   c = Simd::load_bytes(three + 2 * stride);
        return Simd::either(Simd::either(Simd::mask(a, 0x03), Simd::mask(Simd::template left<2>(b), 0x0c)),
                            Simd::mask(Simd::template left<4>(c), 0x30));
    }
}

// Vector j of eight whose nibbles lie in four.
template <class Simd, std::size_t j>
inline typename Simd::Bytes nibbles(const std::uint8_t *four) {
    const auto both = Simd::load_bytes(four + vector_bytes * (j % 4));
    return Simd::mask(j < 4 ? both : Simd::template right<4>(both), 0x0f);
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

// What every PackedGroup has beside `weight`.
template <class Simd>
struct PackedGroupBase {
    const std::uint8_t *vectors;
    typename Simd::Floats scale, second;
};

template <class Simd>
struct UnpackQ4K {
    static constexpr Kind kind = Kind::minimum;
    static constexpr std::size_t groups = 8, unit_bytes = layout_of(Format::q4_k).unit_bytes;
    static constexpr int shift = 0, bits = 4;
    static constexpr std::size_t parts = block_rows / Simd::lanes;

    struct PackedGroup : PackedGroupBase<Simd> {
        template <std::size_t j>
        typename Simd::Bytes weight(Index<j>) const {
            return nibbles<Simd, j>(this->vectors);
        }
    };

    void load(const std::uint8_t *from) {
        unit = from;
        for (std::size_t at = 0; at < vector_bytes; at += sizeof(typename Simd::Bytes))
            for_each_index(
                [&](auto i) {
                    Simd::store_bytes(six_bits + vector_bytes * i + at,
                                      one_of_four<Simd, false, i>(unit + 64 + at, vector_bytes));
                },
                std::make_index_sequence<4>());
        for (std::size_t part = 0; part < parts; ++part) {
            d[part] = Simd::load_halves(unit + in_halves<Simd>(part));
            dmin[part] = Simd::load_halves(unit + 32 + in_halves<Simd>(part));
        }
    }

    PackedGroup group(std::size_t g, std::size_t part) const {
        const std::uint8_t *scales = six_bits + 16 * g + in_bytes<Simd>(part);
        return {{unit + 256 + 256 * g + in_vector<Simd>(part), Simd::multiply(d[part], Simd::load_unsigned(scales)),
                 Simd::multiply(dmin[part], Simd::load_unsigned(scales + 128))}};
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

    struct PackedGroup : PackedGroupBase<Simd> {
        template <std::size_t j>
        typename Simd::Bytes weight(Index<j>) const {
            const std::uint8_t *three = this->vectors + 3 * vector_bytes * (j / 4);
            if constexpr (Simd::scaled) {
                return one_of_four<Simd, true, j % 4>(three, vector_bytes);
            } else {
                return upper_of_four_down<Simd, j % 4>(three, vector_bytes);
            }
        }
    };

    void load(const std::uint8_t *from) {
        unit = from;
        for (std::size_t part = 0; part < parts; ++part)
            d[part] = Simd::template settle_scale<shift>(Simd::load_halves(unit + in_halves<Simd>(part)));
    }

    PackedGroup group(std::size_t g, std::size_t part) const {
        const std::uint8_t *scales = unit + 64 + 32 * g + in_bytes<Simd>(part);
        return {{unit + 320 + 384 * g + in_vector<Simd>(part), Simd::multiply(d[part], Simd::load_signed(scales)),
                 Simd::multiply(d[part], Simd::load_signed(scales + 16))}};
    }

    const std::uint8_t *unit;
    typename Simd::Floats d[parts];
};

template <class Simd>
struct UnpackQ40 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q4_0).unit_bytes;
    static constexpr int shift = 4, bits = 4;

    struct PackedGroup : PackedGroupBase<Simd> {
        template <std::size_t j>
        typename Simd::Bytes weight(Index<j>) const {
            if constexpr (!Simd::scaled) return nibbles<Simd, j>(this->vectors);
            const auto both = Simd::load_bytes(this->vectors + vector_bytes * (j % 4));
            return Simd::mask(j < 4 ? Simd::template left<4>(both) : both, 0xf0);
        }
    };

    void load(const std::uint8_t *from) { unit = from; }

    PackedGroup group(std::size_t g, std::size_t part) const {
        return {{unit + 64 + 256 * g + in_vector<Simd>(part),
                 Simd::template settle_scale<shift>(Simd::load_halves(unit + 32 * g + in_halves<Simd>(part))),
                 Simd::zero()}};
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ41 {
    static constexpr Kind kind = Kind::minimum;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q4_1).unit_bytes;
    static constexpr int shift = 0, bits = 4;
    using PackedGroup = typename UnpackQ4K<Simd>::PackedGroup;

    void load(const std::uint8_t *from) { unit = from; }

    PackedGroup group(std::size_t g, std::size_t part) const {
        const std::uint8_t *scales = unit + 64 * g + in_halves<Simd>(part);
        return {{unit + 128 + 256 * g + in_vector<Simd>(part), Simd::load_halves(scales), Simd::load_halves(scales + 32)}};
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ50 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q5_0).unit_bytes;
    static constexpr int shift = 3, bits = 5;

    struct PackedGroup : PackedGroupBase<Simd> {
        // The nibble goes to bits 3 to 6, the top bit, bit j of its byte, to bit 7.
        template <std::size_t j>
        typename Simd::Bytes weight(Index<j>) const {
            const auto both = Simd::load_bytes(this->vectors + vector_bytes * (j % 4));
            const auto tops = Simd::load_bytes(this->vectors + 4 * vector_bytes);
            const auto low = Simd::mask(j < 4 ? Simd::template left<3>(both) : Simd::template right<1>(both), 0x78);
            return Simd::template settle<shift>(
                Simd::template select<0x80>(Simd::template left<7 - static_cast<int>(j)>(tops), low));
        }
    };

    void load(const std::uint8_t *from) { unit = from; }

    PackedGroup group(std::size_t g, std::size_t part) const {
        return {{unit + 64 + 320 * g + in_vector<Simd>(part),
                 Simd::template settle_scale<shift>(Simd::load_halves(unit + 32 * g + in_halves<Simd>(part))),
                 Simd::zero()}};
    }

    const std::uint8_t *unit;
};

// Weights from 0 to 31: nibbles, and bit j of the vector behind them on top of vector j.
template <class Simd>
struct FiveBitGroup : PackedGroupBase<Simd> {
    template <std::size_t j>
    typename Simd::Bytes weight(Index<j>) const {
        const auto tops = Simd::load_bytes(this->vectors + 4 * vector_bytes);
        if constexpr (j < 4) {
            return Simd::template select<0x10>(Simd::template left<4 - static_cast<int>(j)>(tops),
                                               nibbles<Simd, j>(this->vectors));
        } else {
            return Simd::template select<0x10>(Simd::template right<static_cast<int>(j) - 4>(tops),
                                               nibbles<Simd, j>(this->vectors));
        }
    }
};

template <class Simd>
struct UnpackQ51 {
    static constexpr Kind kind = Kind::minimum;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q5_1).unit_bytes;
    static constexpr int shift = 0, bits = 5;
    using PackedGroup = FiveBitGroup<Simd>;

    void load(const std::uint8_t *from) { unit = from; }

    PackedGroup group(std::size_t g, std::size_t part) const {
        const std::uint8_t *scales = unit + 64 * g + in_halves<Simd>(part);
        return {{unit + 128 + 320 * g + in_vector<Simd>(part), Simd::load_halves(scales), Simd::load_halves(scales + 32)}};
    }

    const std::uint8_t *unit;
};

template <class Simd>
struct UnpackQ5K : UnpackQ4K<Simd> {
    static constexpr std::size_t unit_bytes = layout_of(Format::q5_k).unit_bytes;
    static constexpr int bits = 5;
    using PackedGroup = FiveBitGroup<Simd>;

    PackedGroup group(std::size_t g, std::size_t part) const {
        const auto as_q4_k = UnpackQ4K<Simd>::group(g, part);
        return {{this->unit + 256 + 320 * g + in_vector<Simd>(part), as_q4_k.scale, as_q4_k.second}};
    }
};

template <class Simd>
struct UnpackQ80 {
    static constexpr Kind kind = Kind::offset;
    static constexpr std::size_t groups = 2, unit_bytes = layout_of(Format::q8_0).unit_bytes;
    static constexpr int shift = 0, bits = 8;

    struct PackedGroup : PackedGroupBase<Simd> {
        template <std::size_t j>
        typename Simd::Bytes weight(Index<j>) const {
            return Simd::settle_eight_bits(Simd::load_bytes(this->vectors + vector_bytes * j));
        }
    };

    void load(const std::uint8_t *from) { unit = from; }

    PackedGroup group(std::size_t g, std::size_t part) const {
        return {{unit + 64 + 512 * g + in_vector<Simd>(part), Simd::load_halves(unit + 32 * g + in_halves<Simd>(part)),
                 Simd::zero()}};
    }

    const std::uint8_t *unit;
};
