// The packed side, as layout.h describes it.
#include <cstring>

#include "row_unit.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

constexpr uint32_t low_bits(uint32_t byte) { return byte * 0x01010101u; }

// three_to_four of layout.h, on words of four bytes; `shift` is where the first three vectors' six bits begin: 0 or 2.
void write_three(const uint32_t *four, unsigned shift, uint32_t *three) {
    const unsigned rest = shift ? 0 : 6;
    for (unsigned i = 0; i < 3; ++i) three[i] = four[i] << shift | ((four[3] >> (2 * i)) & low_bits(3)) << rest;
}

void read_three(const uint32_t *three, unsigned shift, uint32_t *four) {
    const unsigned rest = shift ? 0 : 6;
    four[3] = 0;
    for (unsigned i = 0; i < 3; ++i) {
        four[i] = (three[i] >> shift) & low_bits(63);
        four[3] |= ((three[i] >> rest) & low_bits(3)) << (2 * i);
    }
}

uint32_t load_word(const uint8_t *vectors, size_t index, size_t row) {
    uint32_t word;
    std::memcpy(&word, vectors + vector_bytes * index + 4 * row, 4);
    return word;
}

void store_word(uint8_t *vectors, size_t index, size_t row, uint32_t word) {
    std::memcpy(vectors + vector_bytes * index + 4 * row, &word, 4);
}

// Element `row` of the unit's array `index` of 16 halves.
void store_half(uint8_t *unit, size_t index, size_t row, uint16_t bits) {
    std::memcpy(unit + 32 * index + 2 * row, &bits, 2);
}

uint16_t load_half(const uint8_t *unit, size_t index, size_t row) {
    uint16_t bits;
    std::memcpy(&bits, unit + 32 * index + 2 * row, 2);
    return bits;
}

void write_scales(Format format, const RowUnit &in, size_t row, uint8_t *unit) {
    if (has_k_scales(format)) {
        store_half(unit, 0, row, in.d[0]);
        store_half(unit, 1, row, in.m[0]);
        for (size_t g = 0; g < 4; ++g) {
            const uint32_t four[4] = {in.scales[g], in.scales[g + 4], in.minimums[g], in.minimums[g + 4]};
            uint32_t three[3];
            write_three(four, 0, three);
            for (size_t i = 0; i < 3; ++i) unit[64 + 64 * i + 16 * g + row] = static_cast<uint8_t>(three[i]);
        }
    } else if (format == Format::q6_k) {
        store_half(unit, 0, row, in.d[0]);
        for (size_t half = 0; half < 16; ++half) unit[64 + 16 * half + row] = in.scales[half];
    } else {
        const size_t stride = has_half_minimums(format) ? 2 : 1;
        for (size_t g = 0; g < 2; ++g) {
            store_half(unit, stride * g, row, in.d[g]);
            if (has_half_minimums(format)) store_half(unit, stride * g + 1, row, in.m[g]);
        }
    }
}

void read_scales(Format format, const uint8_t *unit, size_t row, RowUnit &out) {
    if (has_k_scales(format)) {
        out.d[0] = load_half(unit, 0, row);
        out.m[0] = load_half(unit, 1, row);
        for (size_t g = 0; g < 4; ++g) {
            uint32_t three[3], four[4];
            for (size_t i = 0; i < 3; ++i) three[i] = unit[64 + 64 * i + 16 * g + row];
            read_three(three, 0, four);
            out.scales[g] = static_cast<uint8_t>(four[0]);
            out.scales[g + 4] = static_cast<uint8_t>(four[1]);
            out.minimums[g] = static_cast<uint8_t>(four[2]);
            out.minimums[g + 4] = static_cast<uint8_t>(four[3]);
        }
    } else if (format == Format::q6_k) {
        out.d[0] = load_half(unit, 0, row);
        for (size_t half = 0; half < 16; ++half) out.scales[half] = unit[64 + 16 * half + row];
    } else {
        const size_t stride = has_half_minimums(format) ? 2 : 1;
        for (size_t g = 0; g < 2; ++g) {
            out.d[g] = load_half(unit, stride * g, row);
            if (has_half_minimums(format)) out.m[g] = load_half(unit, stride * g + 1, row);
        }
    }
}

void write_group(Format format, const uint32_t *words, size_t row, uint8_t *vectors) {
    if (format == Format::q8_0) {
        for (size_t j = 0; j < 8; ++j) store_word(vectors, j, row, words[j]);
    } else if (format == Format::q6_k) {
        for (size_t set = 0; set < 2; ++set) {
            uint32_t three[3];
            write_three(words + 4 * set, 2, three);
            for (size_t i = 0; i < 3; ++i) store_word(vectors, 3 * set + i, row, three[i]);
        }
    } else {
        for (size_t j = 0; j < 4; ++j)
            store_word(vectors, j, row, (words[j] & low_bits(15)) | (words[j + 4] & low_bits(15)) << 4);
        if (!has_five_bits(format)) return;
        uint32_t tops = 0;
        for (unsigned j = 0; j < 8; ++j) tops |= ((words[j] >> 4) & low_bits(1)) << j;
        store_word(vectors, 4, row, tops);
    }
}

void read_group(Format format, const uint8_t *vectors, size_t row, uint32_t *words) {
    if (format == Format::q8_0) {
        for (size_t j = 0; j < 8; ++j) words[j] = load_word(vectors, j, row);
    } else if (format == Format::q6_k) {
        for (size_t set = 0; set < 2; ++set) {
            uint32_t three[3];
            for (size_t i = 0; i < 3; ++i) three[i] = load_word(vectors, 3 * set + i, row);
            read_three(three, 2, words + 4 * set);
        }
    } else {
        for (size_t j = 0; j < 4; ++j) {
            const uint32_t both = load_word(vectors, j, row);
            words[j] = both & low_bits(15);
            words[j + 4] = (both >> 4) & low_bits(15);
        }
        if (!has_five_bits(format)) return;
        const uint32_t tops = load_word(vectors, 4, row);
        for (unsigned j = 0; j < 8; ++j) words[j] |= ((tops >> j) & low_bits(1)) << 4;
    }
}

struct GroupPlace {
    size_t first, stride;  // bytes
};

GroupPlace group_place(Format format) {
    switch (format) {
        case Format::q4_k: return {256, 256};
        case Format::q6_k: return {320, 384};
        case Format::q4_0: return {64, 256};
        case Format::q4_1: return {128, 256};
        case Format::q5_0: return {64, 320};
        case Format::q8_0: return {64, 512};
        case Format::q5_1: return {128, 320};
        case Format::q5_k: return {256, 320};
    }
    return {};
}

}  // namespace

void write_row_unit(Format format, const RowUnit &in, size_t row, uint8_t *unit) {
    write_scales(format, in, row, unit);
    const GroupPlace place = group_place(format);
    for (size_t g = 0; g < layout_of(format).unit_inputs / 32; ++g)
        write_group(format, in.words[g], row, unit + place.first + g * place.stride);
}

void read_packed_row(Format format, const uint8_t *unit, size_t row, RowUnit &out) {
    read_scales(format, unit, row, out);
    const GroupPlace place = group_place(format);
    for (size_t g = 0; g < layout_of(format).unit_inputs / 32; ++g)
        read_group(format, unit + place.first + g * place.stride, row, out.words[g]);
}

}  // namespace paceline
