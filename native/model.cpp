#include "model.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "linear.h"
#include "model_batch.h"
#include "pool.h"

namespace paceline {
namespace {

using std::size_t;

// Interleaved gates and ups of 32 inner values: what one activation group is made of.
constexpr size_t gate_up_blocks_per_group = 2 * group_inputs / block_rows;

const float *data_or_null(const Vector &vector) { return vector.empty() ? nullptr : vector.data(); }

void require(bool holds, const std::string &message) {
    if (!holds) throw std::invalid_argument(message);
}

void check_vector(const Vector &vector, size_t size, const char *name, bool is_optional) {
    if (is_optional && vector.empty()) return;
    require(vector.size() == size, std::string(name) + " has " + std::to_string(vector.size()) + " values, expected " +
                                       std::to_string(size));
}

void check_packed(const std::shared_ptr<const Packed> &packed, size_t num_outputs, size_t num_inputs, const char *name) {
    require(packed && packed->num_outputs() == num_outputs && packed->num_inputs() == num_inputs,
            std::string(name) + " is not [" + std::to_string(num_outputs) + ", " + std::to_string(num_inputs) + "]");
}

void check_layer(const DecoderShape &shape, const DecoderLayer &layer) {
    const size_t hidden = shape.hidden_size, inner = shape.inner_size;
    const auto head_dim = static_cast<size_t>(shape.head_dim);
    check_packed(layer.qkv, shape.qkv_size(), hidden, "qkv");
    check_packed(layer.output, hidden, shape.mixed_size(), "output");
    check_packed(layer.gate_up, 2 * inner, hidden, "gate_up");
    check_packed(layer.down, hidden, inner, "down");
    check_vector(layer.qkv_bias, shape.qkv_size(), "qkv_bias", true);
    check_vector(layer.output_bias, hidden, "output_bias", true);
    check_vector(layer.gate_up_bias, 2 * inner, "gate_up_bias", true);
    check_vector(layer.down_bias, hidden, "down_bias", true);
    check_vector(layer.attention_norm, hidden, "attention_norm", false);
    check_vector(layer.feed_forward_norm, hidden, "feed_forward_norm", false);
    check_vector(layer.q_norm, head_dim, "q_norm", true);
    check_vector(layer.k_norm, head_dim, "k_norm", true);
    check_vector(layer.post_attention_norm, hidden, "post_attention_norm", true);
    check_vector(layer.post_feed_forward_norm, hidden, "post_feed_forward_norm", true);
    require(layer.window >= 0, "a negative window");
}

void check_head(const DecoderShape &shape, const DecoderWeights &weights) {
    const std::vector<std::int32_t> &ids = weights.head_ids;
    const size_t num_tokens = weights.embedding.num_tokens, num_outputs = ids.empty() ? num_tokens : ids.size();
    check_packed(weights.head, num_outputs, shape.hidden_size, "head");
    const bool are_rising = std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
    require(ids.empty() || (are_rising && ids.front() >= 0 && static_cast<size_t>(ids.back()) < num_tokens),
            "token ids of the head's rows must be rising, and in the vocabulary");
}

}  // namespace

Model::Model(const DecoderShape &shape, DecoderWeights weights) : shape_(shape), weights_(std::move(weights)) {
    require(shape.hidden_size % group_inputs == 0 && shape.inner_size % group_inputs == 0 &&
                shape.mixed_size() % group_inputs == 0,
            "sizes of the hidden state, the inner state and all heads must be multiples of 32");
    require(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0 && shape.head_dim % 8 == 0,
            "heads must be a multiple of kv heads, and head_dim one of 8");
    require(!weights_.layers.empty() && !weights_.rotaries.empty(), "a decoder needs layers and a rotary embedding");
    for (const DecoderLayer &layer : weights_.layers) {
        check_layer(shape, layer);
        require(layer.rotary < weights_.rotaries.size(), "a layer's rotary embedding is missing");
    }
    for (const Rotary &rotary : weights_.rotaries)
        require(rotary.size() == static_cast<size_t>(shape.head_dim / 2), "a rotary embedding of another head_dim");
    check_vector(weights_.final_norm, shape.hidden_size, "final_norm", false);
    check_head(shape, weights_);
}

size_t Model::weight_bytes() const {
    size_t sum = weights_.head->num_bytes();
    for (const DecoderLayer &layer : weights_.layers)
        for (const auto &packed : {layer.qkv, layer.output, layer.gate_up, layer.down}) sum += packed->num_bytes();
    return sum;
}

size_t Model::kv_unit_bytes() const {
    return static_cast<size_t>(shape_.num_kv_heads * shape_.head_dim * kv_block_size) * sizeof(std::uint16_t);
}

KvStore Model::kv_in(std::uint8_t *memory, size_t num_pages, size_t page_bytes, size_t blocks_per_page,
                     std::shared_ptr<const void> owner) const {
    return KvStore(num_layers(), static_cast<size_t>(shape_.num_kv_heads), static_cast<size_t>(shape_.head_dim),
                   blocks_per_page, memory, num_pages, page_bytes, std::move(owner));
}

void Model::check(const std::vector<SequenceRows> &sequences, const KvStore &kv) const {
    require(kv.num_layers() == num_layers(), "the keys and values are another model's");
    const auto in_range = [](const std::vector<std::int32_t> &ids, size_t end) {
        return std::all_of(ids.begin(), ids.end(), [end](std::int32_t id) { return id >= 0 && static_cast<size_t>(id) < end; });
    };
    for (const SequenceRows &sequence : sequences) {
        const size_t count = sequence.token_ids.size();
        require(sequence.start >= 0, "a sequence starts at a negative position");
        require(sequence.num_logits <= count, "more logits than rows");
        require(static_cast<size_t>(sequence.start) + count <= sequence.pages.size() * kv.positions_per_page(),
                std::to_string(sequence.pages.size()) + " blocks do not cover " +
                    std::to_string(static_cast<size_t>(sequence.start) + count) + " positions");
        require(in_range(sequence.pages, kv.num_pages()), "a block id is out of range");
        require(in_range(sequence.token_ids, weights_.embedding.num_tokens), "a token id is out of range");
    }
}

// Everything that a pass keeps for each row; `each` is told of a buffer and of the width of its rows.
template <class Each>
void Model::for_row_buffers(Workspace &ws, Each each) const {
    const size_t hidden = shape_.hidden_size, inner = shape_.inner_size;
    const size_t angles = static_cast<size_t>(shape_.head_dim / 2) * weights_.rotaries.size();
    each(ws.hidden, hidden);
    each(ws.part, hidden);
    each(ws.qkv, shape_.qkv_size());
    each(ws.mixed, shape_.mixed_size());
    each(ws.gate_up, 2 * inner);
    each(ws.cos, angles);
    each(ws.sin, angles);
    each(ws.hidden_groups, hidden);
    each(ws.mixed_groups, shape_.mixed_size());
    each(ws.inner_groups, inner);
}

void Model::reserve(const Batch &batch) {
    for_row_buffers(workspace_, [&](auto &buffer, size_t width) { buffer.reserve(batch.num_rows(), width); });
    for (const AttentionPlan &plan : batch.plans) workspace_.scratch.reserve(1, plan.scratch_size());
}

size_t Model::workspace_bytes(size_t num_rows, size_t num_logits, size_t num_positions) const {
    Workspace none;
    size_t sum = 0;
    for_row_buffers(none, [&](auto &buffer, size_t width) { sum += buffer.bytes_for(num_rows, width); });
    const size_t reduced = has_all_outputs() ? 0 : none.reduced.bytes_for(num_logits, weights_.head_ids.size());
    const AttentionShape shape{shape_.num_heads, shape_.num_kv_heads, shape_.head_dim, shape_.score_scale, 0};
    const size_t scratch = none.scratch.bytes_for(1, AttentionPlan::most_scratch(shape, num_rows, num_positions));
    return sum + reduced + scratch + num_logits * vocab_size() * sizeof(float);
}

void Model::forward(const std::vector<SequenceRows> &sequences, KvStore &kv, float *logits) {
    check(sequences, kv);
    const std::lock_guard lock(mutex_);
    stages_.begin();
    const Batch batch(shape_, weights_.layers, sequences, kv);
    if (batch.num_rows() == 0) return;
    reserve(batch);
    embed_rows(batch);
    for (size_t layer = 0; layer < num_layers(); ++layer) {
        attention_part(batch, layer, kv);
        feed_forward_part(batch, layer);
    }
    output_part(batch, logits);
}

void Model::embed_rows(const Batch &batch) {
    const EmbeddingTable &table = weights_.embedding;
    const auto half_head = static_cast<size_t>(shape_.head_dim / 2);
    pool::parallel_for(batch.num_rows(), [&](size_t row) {
        embed(*table.format, table.bytes, static_cast<size_t>(batch.token_ids[row]), shape_.hidden_size,
              shape_.embedding_scale, workspace_.hidden.row(row));
        for (size_t i = 0; i < weights_.rotaries.size(); ++i)
            weights_.rotaries[i].angles(batch.positions[row], workspace_.cos.row(row) + i * half_head,
                                        workspace_.sin.row(row) + i * half_head);
    });
    stages_.end(Stage::embed);
}

void Model::norm_and_quantise(const Vector &weight, size_t row) {
    const Workspace &ws = workspace_;
    rms_norm_quantise(ws.hidden.row(row), weight.data(), shape_.norm_eps, shape_.hidden_size, ws.hidden_groups.row(row));
}

void Model::add_part(const Vector &post_norm, size_t row) {
    float *part = workspace_.part.row(row);
    if (!post_norm.empty()) rms_norm(part, post_norm.data(), shape_.norm_eps, part, shape_.hidden_size);
    add(workspace_.hidden.row(row), part, shape_.hidden_size);
}

void Model::attention_part(const Batch &batch, size_t index, KvStore &kv) {
    const DecoderLayer &layer = weights_.layers[index];
    const Workspace &ws = workspace_;
    const size_t num_rows = batch.num_rows();
    pool::parallel_for(num_rows, [&](size_t row) {
        if (index > 0) add_part(weights_.layers[index - 1].post_feed_forward_norm, row);
        norm_and_quantise(layer.attention_norm, row);
    });
    stages_.end(Stage::norm);
    linear(*layer.qkv, {ws.hidden_groups.row(0), ws.hidden_groups.stride()}, num_rows, data_or_null(layer.qkv_bias),
           ws.qkv.row(0), ws.qkv.width());
    stages_.end(Stage::qkv);
    const QkvShape qkv{shape_.pairing,         shape_.num_heads,         shape_.num_kv_heads, shape_.head_dim,
                       data_or_null(layer.q_norm), data_or_null(layer.k_norm), shape_.norm_eps};
    const size_t angle_offset = layer.rotary * static_cast<size_t>(shape_.head_dim / 2);
    pool::parallel_for(num_rows, [&](size_t row) {
        rotate_and_store(qkv, ws.qkv.row(row), ws.cos.row(row) + angle_offset, ws.sin.row(row) + angle_offset,
                         kv.keys(index), kv.values(index), batch.blocks[row],
                         static_cast<size_t>(batch.positions[row]) % kv_block_size);
    });
    stages_.end(Stage::rotary);
    const AttentionPlan &plan = batch.plan(index);
    const AttentionBuffers buffers{ws.qkv.row(0),   ws.qkv.width(),   kv.keys(index),   kv.values(index),
                                   ws.mixed.row(0), ws.mixed.width(), ws.scratch.row(0)};
    pool::parallel_for(plan.num_tasks(), [&](size_t task) { plan.attend(buffers, task); });
    pool::parallel_for(num_rows, [&](size_t row) {
        plan.finish(buffers, row);
        quantise_row(ws.mixed.row(row), shape_.mixed_size(), ws.mixed_groups.row(row));
    });
    stages_.end(Stage::attention);
    linear(*layer.output, {ws.mixed_groups.row(0), ws.mixed_groups.stride()}, num_rows, data_or_null(layer.output_bias),
           ws.part.row(0), ws.part.width());
    stages_.end(Stage::output);
}

void Model::feed_forward_part(const Batch &batch, size_t index) {
    const DecoderLayer &layer = weights_.layers[index];
    const Workspace &ws = workspace_;
    const size_t num_rows = batch.num_rows();
    pool::parallel_for(num_rows, [&](size_t row) {
        add_part(layer.post_attention_norm, row);
        norm_and_quantise(layer.feed_forward_norm, row);
    });
    stages_.end(Stage::norm);
    // Each chunk makes whole activation groups of its own outputs while they are in its cache.
    const Chunks chunks(layer.gate_up->blocks().size(), pool::num_threads(), gate_up_blocks_per_group);
    pool::parallel_for(chunks.count(), [&](size_t i) {
        const size_t begin = chunks.begin(i), end = chunks.begin(i + 1);
        linear_blocks(*layer.gate_up, {ws.hidden_groups.row(0), ws.hidden_groups.stride()}, num_rows,
                      data_or_null(layer.gate_up_bias), ws.gate_up.row(0), ws.gate_up.width(), begin, end);
        for (size_t row = 0; row < num_rows; ++row)
            gate_quantise(shape_.activation, GateUp::interleaved(ws.gate_up.row(row)), begin / gate_up_blocks_per_group,
                          end / gate_up_blocks_per_group, ws.inner_groups.row(row));
    });
    stages_.end(Stage::gate_up);
    linear(*layer.down, {ws.inner_groups.row(0), ws.inner_groups.stride()}, num_rows, data_or_null(layer.down_bias),
           ws.part.row(0), ws.part.width());
    stages_.end(Stage::down);
}

void Model::output_part(const Batch &batch, float *logits) {
    const size_t num_wanted = batch.wanted.size();
    if (num_wanted == 0) return;
    const Workspace &ws = workspace_;
    pool::parallel_for(num_wanted, [&](size_t i) {
        const size_t row = batch.wanted[i];
        add_part(weights_.layers.back().post_feed_forward_norm, row);
        rms_norm_quantise(ws.hidden.row(row), weights_.final_norm.data(), shape_.norm_eps, shape_.hidden_size,
                          ws.hidden_groups.row(i));
    });
    stages_.end(Stage::norm);
    const Activations rows{ws.hidden_groups.row(0), ws.hidden_groups.stride()};
    if (has_all_outputs()) {
        linear(*weights_.head, rows, num_wanted, nullptr, logits, vocab_size());
    } else {
        const std::vector<std::int32_t> &ids = weights_.head_ids;
        workspace_.reduced.reserve(num_wanted, ids.size());
        linear(*weights_.head, rows, num_wanted, nullptr, ws.reduced.row(0), ids.size());
        pool::parallel_for(num_wanted, [&](size_t i) {
            const float *from = ws.reduced.row(i);
            float *to = logits + i * vocab_size();
            for (size_t k = 0; k < ids.size(); ++k) to[ids[k]] = from[k];
        });
    }
    stages_.end(Stage::head);
}

}  // namespace paceline
