// The rows of one forward pass, laid out for the stages; included by model.cpp alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "model.h"

namespace paceline {

// A forward pass laid out as rows.
struct Model::Batch {
    Batch(const DecoderShape &shape, const std::vector<DecoderLayer> &layers, const std::vector<SequenceRows> &sequences,
          const KvStore &kv) {
        std::vector<AttentionSlice> slices;
        for (const SequenceRows &sequence : sequences) {
            const std::size_t count = sequence.token_ids.size();
            const std::vector<std::int32_t> &ids = block_ids.emplace_back(kernel_blocks(sequence, kv));
            slices.push_back({static_cast<int>(token_ids.size()), static_cast<int>(count), sequence.start, ids.data()});
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t position = static_cast<std::size_t>(sequence.start) + i;
                token_ids.push_back(sequence.token_ids[i]);
                positions.push_back(static_cast<std::int64_t>(position));
                blocks.push_back(static_cast<std::size_t>(ids[position / kv_block_size]));
            }
            for (std::size_t i = count - sequence.num_logits; i < count; ++i)
                wanted.push_back(token_ids.size() - count + i);
        }
        for (const DecoderLayer &layer : layers) {
            const auto known = std::find(windows.begin(), windows.end(), layer.window);
            plan_of_layer.push_back(static_cast<std::size_t>(known - windows.begin()));
            if (known != windows.end()) continue;
            windows.push_back(layer.window);
            plans.emplace_back(
                AttentionShape{shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.score_scale, layer.window},
                slices.data(), slices.size());
        }
    }

    static std::vector<std::int32_t> kernel_blocks(const SequenceRows &sequence, const KvStore &kv) {
        std::vector<std::int32_t> ids;
        for (const std::int32_t page : sequence.pages)
            for (std::size_t block = 0; block < kv.blocks_per_page(); ++block)
                ids.push_back(kv.block_id(static_cast<std::size_t>(page), block));
        return ids;
    }

    std::size_t num_rows() const { return token_ids.size(); }
    const AttentionPlan &plan(std::size_t layer) const { return plans[plan_of_layer[layer]]; }

    std::vector<std::vector<std::int32_t>> block_ids;  // of each sequence, as kernels number them; plans point here
    std::vector<std::int32_t> token_ids;
    std::vector<std::int64_t> positions;
    std::vector<std::size_t> blocks;  // KV block of each row
    std::vector<std::size_t> wanted;  // rows whose logits are wanted
    std::vector<int> windows;
    std::vector<AttentionPlan> plans;  // one a window
    std::vector<std::size_t> plan_of_layer;
};

}  // namespace paceline
