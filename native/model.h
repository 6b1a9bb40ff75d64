// A whole decoder: one call is one forward pass over a ragged batch. Reference: src/paceline/models/decoder.py.
//
// Exactness. Everything here works on one row, or on one row's part for some outputs; work is cut over rows and outputs,
// never along a sum. So a row's logits and its keys and values depend on its own token and on those of its sequence before
// it, and on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kv_store.h"
#include "model_stages.h"
#include "model_workspace.h"
#include "ops.h"
#include "packed.h"

namespace paceline {

using Vector = std::vector<float>;  // empty where a model has no such weights

struct DecoderShape {
    std::size_t hidden_size, inner_size;
    int num_heads, num_kv_heads, head_dim;
    float norm_eps, embedding_scale, score_scale;
    Activation activation;
    Pairing pairing;

    std::size_t mixed_size() const { return static_cast<std::size_t>(num_heads * head_dim); }
    std::size_t qkv_size() const { return static_cast<std::size_t>((num_heads + 2 * num_kv_heads) * head_dim); }
};

struct DecoderLayer {
    std::shared_ptr<const Packed> qkv, output, gate_up, down;  // gate_up is interleaved
    Vector qkv_bias, output_bias, gate_up_bias, down_bias;
    Vector attention_norm, q_norm, k_norm, post_attention_norm, feed_forward_norm, post_feed_forward_norm;
    int window;          // positions that a query sees; 0 is all
    std::size_t rotary;  // index among the decoder's
};

// An embedding table as its file holds it.
struct EmbeddingTable {
    const BlockFormat *format;
    const std::uint8_t *bytes;  // [num_tokens, row bytes]
    std::size_t num_tokens;
    std::shared_ptr<const void> owner;
};

struct DecoderWeights {
    EmbeddingTable embedding;
    std::vector<DecoderLayer> layers;
    std::vector<Rotary> rotaries;
    Vector final_norm;
    std::shared_ptr<const Packed> head;
    std::vector<std::int32_t> head_ids;  // token ids of the head's rows, rising; empty where they are all tokens, in order
};

// The rows of one sequence: consecutive positions from `start`.
struct SequenceRows {
    int start;
    std::vector<std::int32_t> token_ids;
    std::vector<std::int32_t> pages;  // of the store; they cover positions 0 .. start + token_ids.size() - 1
    std::size_t num_logits;           // wanted of this many of the last rows
};

class Model {
   public:
    // Throws std::invalid_argument where sizes do not agree.
    Model(const DecoderShape &shape, DecoderWeights weights);

    std::size_t num_layers() const { return weights_.layers.size(); }
    std::size_t vocab_size() const { return weights_.embedding.num_tokens; }
    bool has_all_outputs() const { return weights_.head_ids.empty(); }
    std::size_t weight_bytes() const;  // packed weights, the embedding in its file not counted
    std::size_t workspace_bytes() const { return workspace_.num_bytes(); }
    // What forward passes of at most so many rows, logits and positions of a sequence take at most, logits included.
    std::size_t workspace_bytes(std::size_t num_rows, std::size_t num_logits, std::size_t num_positions) const;
    std::size_t kv_unit_bytes() const;  // a page of KV must be a multiple of it
    // Throws std::invalid_argument where pages do not suit the decoder.
    KvStore kv_in(std::uint8_t *memory, std::size_t num_pages, std::size_t page_bytes, std::size_t blocks_per_page,
                  std::shared_ptr<const void> owner) const;

    // Computes all rows, writes their keys and values, and the wanted rows' logits to [sum of num_logits, vocab_size()];
    // of tokens that a reduced head lacks, nothing is written. Throws std::invalid_argument where ids are out of range or
    // pages do not cover positions; nothing has run then. One pass at a time: a second thread waits.
    void forward(const std::vector<SequenceRows> &sequences, KvStore &kv, float *logits);

    const StageClock &stages() const { return stages_; }
    void reset_stages() { stages_.reset(); }

   private:
    struct Batch;
    void check(const std::vector<SequenceRows> &sequences, const KvStore &kv) const;
    void embed_rows(const Batch &batch);
    void attention_part(const Batch &batch, std::size_t layer, KvStore &kv);
    void feed_forward_part(const Batch &batch, std::size_t layer);
    void output_part(const Batch &batch, float *logits);
    template <class Each>
    void for_row_buffers(Workspace &workspace, Each each) const;
    void reserve(const Batch &batch);
    void norm_and_quantise(const Vector &weight, std::size_t row);
    void add_part(const Vector &post_norm, std::size_t row);

    DecoderShape shape_;
    DecoderWeights weights_;
    Workspace workspace_;
    StageClock stages_;
    std::mutex mutex_;
};

}  // namespace paceline
