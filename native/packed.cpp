#include "packed.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>

#include "pool.h"
#include "requantise.h"
#include "row_unit.h"
#include "transcode.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint8_t;

size_t units_of(Format format, size_t num_inputs) {
    const size_t unit = layout_of(format).unit_inputs;
    return (num_inputs + unit - 1) / unit;
}

size_t block_bytes(Format format, size_t num_inputs) {
    return units_of(format, num_inputs) * layout_of(format).unit_bytes;
}

std::optional<Format> own_format_of(const std::string &type_name) {
    std::string small;
    for (const char c : type_name) small += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (int i = 0; i < num_formats; ++i)
        if (small == layouts[i].name) return static_cast<Format>(i);
    return std::nullopt;
}

[[noreturn]] void refuse(const std::string &reason) { throw std::invalid_argument(reason); }

void check(const std::vector<Part> &parts, size_t num_inputs, bool interleave) {
    if (parts.empty()) refuse("no matrix to pack");
    if (num_inputs == 0 || num_inputs % 32) refuse(std::to_string(num_inputs) + " inputs are not whole groups of 32");
    for (const Part &part : parts) {
        const bool is_last = &part == &parts.back();
        const size_t file_block = part.type->elements;
        const size_t packed_block = layout_of(part.format).unit_inputs == 256 ? 256 : 32;
        if (num_inputs % file_block || num_inputs % packed_block)
            refuse(std::to_string(num_inputs) + " inputs are not whole blocks of " + part.type->name + " packed as " +
                   layout_of(part.format).name);
        if (format_of(part.type->name) != part.format && !can_requantise_to(part.format))
            refuse(std::string(part.type->name) + " cannot be re-quantised to " + layout_of(part.format).name);
        if (part.num_rows == 0) refuse("a matrix without rows");
        if ((interleave || !is_last) && part.num_rows % block_rows)
            refuse("a matrix of " + std::to_string(part.num_rows) +
                   " rows is followed by another; 16 rows must be whole blocks");
        if (interleave && part.num_rows != parts.front().num_rows)
            refuse("interleaved matrices have " + std::to_string(parts.front().num_rows) + " and " +
                   std::to_string(part.num_rows) + " rows");
        for (size_t i = 0; part.rows && i < part.num_rows; ++i)
            if (part.rows[i] >= part.num_file_rows)
                refuse("row " + std::to_string(part.rows[i]) + " of a matrix of " + std::to_string(part.num_file_rows));
    }
}

// The blocks of row `row` of a part in the packed format's file layout: the file's own bytes, the same values written
// so, or re-quantised ones.
const uint8_t *row_blocks(const Part &part, size_t row, size_t num_inputs, std::vector<float> &values,
                          std::vector<uint8_t> &scratch) {
    const size_t file_row = part.rows ? part.rows[row] : row;
    const uint8_t *bytes = part.bytes + file_row * (num_inputs / part.type->elements * part.type->bytes);
    if (own_format_of(part.type->name) == part.format) return bytes;
    if (exact_format_of(part.type->name) == part.format) {
        transcode_row(*part.type, bytes, num_inputs, scratch);
        return scratch.data();
    }
    values.resize(num_inputs);
    part.type->decode(bytes, values.data(), num_inputs / part.type->elements);
    requantise_row(part.format, values.data(), num_inputs, scratch);
    return scratch.data();
}

// Packs the block that begins at row `first` of a part.
void pack_block(const Part &part, size_t first, size_t num_inputs, uint8_t *out) {
    const FormatLayout &layout = layout_of(part.format);
    const size_t num_units = units_of(part.format, num_inputs);
    std::vector<float> values;
    std::vector<uint8_t> scratch;
    for (size_t r = 0; r < block_rows; ++r) {
        const bool is_padding = first + r >= part.num_rows;
        const uint8_t *blocks = is_padding ? nullptr : row_blocks(part, first + r, num_inputs, values, scratch);
        RowUnit row_unit{};
        for (size_t u = 0; u < num_units; ++u) {
            const size_t num_groups = std::min(layout.unit_inputs, num_inputs - u * layout.unit_inputs) / 32;
            if (!is_padding)
                read_row_unit(part.format, blocks + u * file_unit_bytes(part.format), num_groups, row_unit);
            write_row_unit(part.format, row_unit, r, out + u * layout.unit_bytes);
        }
    }
}

}  // namespace

std::optional<Format> format_of(const std::string &type_name) {
    const std::optional<Format> own = own_format_of(type_name);
    return own ? own : exact_format_of(type_name);
}

Packed::Packed(const std::vector<Part> &parts, size_t num_inputs, bool interleave) : num_inputs_(num_inputs) {
    check(parts, num_inputs, interleave);
    struct Source {
        const Part *part;
        size_t first_row, offset;
    };
    std::vector<Source> sources;
    const auto add = [&](const Part &part, size_t first_row) {
        sources.push_back({&part, first_row, num_bytes_});
        num_bytes_ += block_bytes(part.format, num_inputs);
    };
    if (interleave) {
        for (size_t row = 0; row < parts.front().num_rows; row += block_rows)
            for (const Part &part : parts) add(part, row);
    } else {
        for (const Part &part : parts)
            for (size_t row = 0; row < part.num_rows; row += block_rows) add(part, row);
    }
    for (const Part &part : parts) num_outputs_ += part.num_rows;
    memory_ = allocate(num_bytes_);
    for (const Source &source : sources) blocks_.push_back({memory_.get() + source.offset, source.part->format});
    pool::parallel_for(sources.size(), [&](size_t i) {
        pack_block(*sources[i].part, sources[i].first_row, num_inputs, memory_.get() + sources[i].offset);
    });
}

void Packed::unpack(float *out) const {
    pool::parallel_for(blocks_.size(), [&](size_t b) {
        const auto [data, format] = blocks_[b];
        const FormatLayout &layout = layout_of(format);
        float values[256];
        RowUnit row_unit{};
        for (size_t row = b * block_rows; row < std::min((b + 1) * block_rows, num_outputs_); ++row)
            for (size_t k = 0; k < num_inputs_; k += layout.unit_inputs) {
                read_packed_row(format, data + k / layout.unit_inputs * layout.unit_bytes, row % block_rows, row_unit);
                dequantize_row_unit(format, row_unit, values);
                const size_t count = std::min(layout.unit_inputs, num_inputs_ - k);
                std::memcpy(out + row * num_inputs_ + k, values, count * sizeof(float));
            }
    });
}

}  // namespace paceline
