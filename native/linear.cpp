#include "linear.h"

#include <algorithm>
#include <array>

#include "cpu.h"
#include "memory.h"
#include "pool.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint8_t;

// Above this many rows, unpacking to the cache costs less than unpacking once for every 8 rows.
constexpr size_t most_few_rows = 8;

// The compute-bound path walks rows in slices and panels in batches, so that a slice of the activations (256 rows of
// 512 inputs are 256 KiB) and the sums of a batch stay in the second-level cache while weights stream past.
constexpr size_t slice_rows = 256, batch_panels = 8;

const LinearKernels &kernels() {
#if defined(__x86_64__)
    switch (cpu::current()) {
        case cpu::Isa::avx512_vnni: return linear_avx512;
        case cpu::Isa::avx2_vnni: return linear_avx2_vnni;
        case cpu::Isa::avx2: return linear_avx2;
        case cpu::Isa::portable: break;
    }
#endif
    return linear_portable;
}

size_t units_of(Format format, size_t num_inputs) {
    const size_t unit = layout_of(format).unit_inputs;
    return (num_inputs + unit - 1) / unit;
}

// Sums of one block ([num_rows, ld], 16 columns) to the output; the last block may have fewer outputs than 16.
void write_block(const Packed &weights, size_t block, const float *sums, size_t ld, size_t num_rows, const float *bias,
                 float *y, size_t ldy) {
    const size_t first = block * block_rows, count = std::min(block_rows, weights.num_outputs() - first);
    for (size_t m = 0; m < num_rows; ++m)
        for (size_t i = 0; i < count; ++i)
            y[m * ldy + first + i] = bias ? sums[m * ld + i] + bias[first + i] : sums[m * ld + i];
}

struct Panel {
    size_t first_block, num_blocks;
};

// The next panel of blocks that share a format.
Panel next_panel(const Packed &weights, size_t first_block, size_t last_block) {
    const auto &blocks = weights.blocks();
    const bool is_pair = first_block + 1 < last_block && blocks[first_block].format == blocks[first_block + 1].format;
    return {first_block, is_pair ? panel_blocks : size_t{1}};
}

void run_few(const Packed &weights, Activations x, size_t num_rows, const float *bias, float *y, size_t ldy,
             size_t first_block, size_t last_block) {
    const auto few = kernels().few;
    alignas(64) float sums[max_few_rows * panel_outputs];
    while (first_block < last_block) {
        const Panel panel = next_panel(weights, first_block, last_block);
        const Format format = weights.blocks()[first_block].format;
        const uint8_t *blocks[panel_blocks];
        for (size_t i = 0; i < panel.num_blocks; ++i) blocks[i] = weights.blocks()[first_block + i].data;
        few(format, blocks, panel.num_blocks, units_of(format, weights.num_inputs()), x, num_rows, sums);
        for (size_t i = 0; i < panel.num_blocks; ++i)
            write_block(weights, first_block + i, sums + i * block_rows, panel_outputs, num_rows, bias, y, ldy);
        first_block += panel.num_blocks;
    }
}

// Inputs [first_input, + panel_inputs) of a panel times a slice of rows.
void add_panel(const Packed &weights, Panel panel, size_t first_input, Activations x, size_t num_rows, float *sums,
               uint8_t *scratch) {
    const Format format = weights.blocks()[panel.first_block].format;
    const FormatLayout &layout = layout_of(format);
    const size_t first_unit = first_input / layout.unit_inputs;
    const size_t num_units =
        std::min(panel_inputs / layout.unit_inputs, units_of(format, weights.num_inputs()) - first_unit);
    const uint8_t *units[panel_blocks];
    for (size_t i = 0; i < panel.num_blocks; ++i)
        units[i] = weights.blocks()[panel.first_block + i].data + first_unit * layout.unit_bytes;
    const Activations inputs{x.groups + first_input / group_inputs, x.stride};
    kernels().many(format, units, panel.num_blocks, num_units, inputs, num_rows, sums, scratch);
}

void run_many(const Packed &weights, Activations x, size_t num_rows, const float *bias, float *y, size_t ldy,
              size_t first_block, size_t last_block) {
    static_assert(slice_rows * panel_outputs * sizeof(float) % 64 == 0);
    constexpr size_t panel_sums = slice_rows * panel_outputs;
    thread_local const Memory memory = allocate(panel_bytes + batch_panels * panel_sums * sizeof(float));
    uint8_t *scratch = memory.get();
    float *sums = reinterpret_cast<float *>(scratch + panel_bytes);
    while (first_block < last_block) {
        std::array<Panel, batch_panels> panels;
        size_t num_panels = 0;
        for (; num_panels < batch_panels && first_block < last_block; ++num_panels) {
            panels[num_panels] = next_panel(weights, first_block, last_block);
            first_block += panels[num_panels].num_blocks;
        }
        for (size_t row = 0; row < num_rows; row += slice_rows) {
            const size_t count = std::min(slice_rows, num_rows - row);
            const Activations slice{x.groups + row * x.stride, x.stride};
            for (size_t p = 0; p < num_panels; ++p) std::fill_n(sums + p * panel_sums, count * panel_outputs, 0.0f);
            for (size_t k = 0; k < weights.num_inputs(); k += panel_inputs)
                for (size_t p = 0; p < num_panels; ++p)
                    add_panel(weights, panels[p], k, slice, count, sums + p * panel_sums, scratch);
            for (size_t p = 0; p < num_panels; ++p)
                for (size_t i = 0; i < panels[p].num_blocks; ++i)
                    write_block(weights, panels[p].first_block + i, sums + p * panel_sums + i * block_rows,
                                panel_outputs, count, bias, y + row * ldy, ldy);
        }
    }
}

}  // namespace

void linear_blocks(const Packed &weights, Activations x, size_t num_rows, const float *bias, float *y, size_t ldy,
                   size_t first_block, size_t last_block) {
    const auto run = num_rows <= most_few_rows ? run_few : run_many;
    run(weights, x, num_rows, bias, y, ldy, first_block, last_block);
}

void linear(const Packed &weights, Activations x, size_t num_rows, const float *bias, float *y, size_t ldy) {
    const Chunks chunks(weights.blocks().size(), pool::num_threads(), num_rows <= most_few_rows ? 1 : panel_blocks);
    pool::parallel_for(chunks.count(), [&](size_t i) {
        linear_blocks(weights, x, num_rows, bias, y, ldy, chunks.begin(i), chunks.begin(i + 1));
    });
}

Chunks::Chunks(size_t num_blocks, size_t num_threads, size_t multiple)
    : num_units_((num_blocks + multiple - 1) / multiple),
      num_blocks_(num_blocks),
      num_threads_(num_threads),
      multiple_(multiple),
      count_(num_threads) {
    for (size_t rest = num_units_; num_threads > 1 && rest / 2 >= num_threads; rest -= (rest + 1) / 2)
        count_ += num_threads;
}

size_t Chunks::begin(size_t chunk) const {
    size_t first = 0, rest = num_units_;
    for (size_t i = num_threads_; i <= chunk; i += num_threads_) {
        if (i == count_) return num_blocks_;
        first += (rest + 1) / 2;
        rest -= (rest + 1) / 2;
    }
    const bool is_last_level = chunk / num_threads_ + 1 == count_ / num_threads_;
    const size_t level_size = is_last_level ? rest : (rest + 1) / 2;
    return std::min(num_blocks_, (first + level_size * (chunk % num_threads_) / num_threads_) * multiple_);
}

}  // namespace paceline
