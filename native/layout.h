// How packed weights lie in memory. Declarations only: files compiled for an instruction set include this.
//
// A block is 16 output rows. Its inputs are cut into units; each unit holds the 16 rows' scales, then the weights of
// its groups of 32 inputs. A group is eight vectors of 64 bytes: byte 4 r + i of vector j is input 4 j + i of row r, so
// that one instruction multiplies 16 rows by 4 inputs. All numbers are the file's own; a unit is a whole number of
// cache lines.
//
//   format  inputs  bytes  scales                                  weights of a group
//   q4_k    256     2304   16 half d, 16 half dmin; 192 B of          4 x 64 B: vector j low, j + 4 high nibble
//                          6-bit scales and minimums (below)
//   q6_k    256     3392   16 half d, 32 B unused;                    2 x 3 x 64 B: three_to_four, upper six bits
//                          16 x 16 signed bytes
//   q4_0    64      576    2 x 16 half d                              as q4_k
//   q4_1    64      640    2 x (16 half d, 16 half -m)                as q4_k
//   q5_0    64      704    2 x 16 half d                              as q4_k, then 64 B: bit j tops vector j
//   q5_1    64      768    2 x (16 half d, 16 half -m)                as q5_0
//   q5_k    256     2816   as q4_k                                    as q5_0
//   q8_0    64      1088   2 x 16 half d                              8 x 64 B: q + 128
//
// The scales of q4_k and q5_k are three_to_four of: scales of groups 0-3, of groups 4-7, minimums of groups 0-3, of groups 4-7,
// the 16 rows of a group side by side.
//
// three_to_four keeps four vectors of 6-bit values in three of bytes: the first three in six bits of one byte each, the
// fourth in the two bits that each byte has left, its lowest bits in the first byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

enum class Format : std::uint8_t { q4_k, q6_k, q4_0, q4_1, q5_0, q8_0, q5_1, q5_k };
inline constexpr int num_formats = 8;

inline constexpr std::size_t block_rows = 16;
inline constexpr std::size_t vector_bytes = 64;

struct FormatLayout {
    const char *name;  // the file's type, in small letters
    std::size_t unit_inputs;
    std::size_t unit_bytes;
};

inline constexpr FormatLayout layouts[num_formats] = {
    {"q4_k", 256, 2304}, {"q6_k", 256, 3392}, {"q4_0", 64, 576},
    {"q4_1", 64, 640},   {"q5_0", 64, 704},   {"q8_0", 64, 1088}, {"q5_1", 64, 768}, {"q5_k", 256, 2816},
};

constexpr const FormatLayout &layout_of(Format format) { return layouts[static_cast<int>(format)]; }

// Formats share the layout of their scales, and that of their weights.
constexpr bool has_k_scales(Format format) { return format == Format::q4_k || format == Format::q5_k; }
constexpr bool has_half_minimums(Format format) { return format == Format::q4_1 || format == Format::q5_1; }
constexpr bool has_five_bits(Format format) {
    return format == Format::q5_0 || format == Format::q5_1 || format == Format::q5_k;
}

}  // namespace paceline
