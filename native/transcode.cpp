#include "transcode.h"

#include <cstring>
#include <stdexcept>

#include "block_reading.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint8_t;

// One block of a type to as many values of another's.
struct Transcoding {
    const char *type_name;
    Format format;
    size_t block_bytes;
    void (*block)(const uint8_t *in, uint8_t *out);
};

void iq4_nl_to_q8_0(const uint8_t *in, uint8_t *out) {
    std::memcpy(out, in, 2);
    for (int j = 0; j < 16; ++j) {
        out[2 + j] = static_cast<uint8_t>(iq4_nl_values[in[2 + j] & 15]);
        out[18 + j] = static_cast<uint8_t>(iq4_nl_values[in[2 + j] >> 4]);
    }
}

// d * scale * value is computed in the same order for both.
void q3_k_to_q6_k(const uint8_t *in, uint8_t *out) {
    std::memset(out, 0, 192);
    for (int i = 0; i < 256; ++i) {
        const int value = read_q3_k_value(in, in + 32, i) + 32;
        const int group = i / 32, j = i % 32;
        uint8_t &low = out[64 * (group / 4) + 32 * (group % 2) + j], &high = out[128 + 32 * (group / 4) + j];
        low = static_cast<uint8_t>(low | (value & 15) << (4 * (group % 4 / 2)));
        high = static_cast<uint8_t>(high | (value >> 4) << (2 * (group % 4)));
    }
    for (int i = 0; i < 16; ++i) out[192 + i] = static_cast<uint8_t>(read_q3_k_scale(in + 96, i));
    std::memcpy(out + 208, in + 108, 2);
}

constexpr Transcoding transcodings[] = {
    {"IQ4_NL", Format::q8_0, 34, iq4_nl_to_q8_0},
    {"Q3_K", Format::q6_k, 210, q3_k_to_q6_k},
};

const Transcoding *find(const std::string &type_name) {
    for (const Transcoding &transcoding : transcodings)
        if (type_name == transcoding.type_name) return &transcoding;
    return nullptr;
}

}  // namespace

std::optional<Format> exact_format_of(const std::string &type_name) {
    const Transcoding *transcoding = find(type_name);
    return transcoding ? std::optional(transcoding->format) : std::nullopt;
}

void transcode_row(const BlockFormat &type, const uint8_t *row, size_t num_inputs, std::vector<uint8_t> &blocks) {
    const Transcoding *transcoding = find(type.name);
    if (!transcoding) throw std::invalid_argument(std::string(type.name) + " is no other format's blocks");
    const size_t num_blocks = num_inputs / type.elements;
    blocks.resize(num_blocks * transcoding->block_bytes);
    for (size_t b = 0; b < num_blocks; ++b)
        transcoding->block(row + b * type.bytes, blocks.data() + b * transcoding->block_bytes);
}

}  // namespace paceline
