// The decoder as Python sees it: built once from packed weights and small vectors, then one call a forward pass.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

using std::size_t;

using Values = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OptionalValues = std::optional<Values>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using SharedPacked = std::shared_ptr<const Packed>;

[[noreturn]] void refuse(const std::string &reason) { throw std::invalid_argument(reason); }

Vector copy_of(const OptionalValues &values) {
    return values ? Vector(values->data(), values->data() + values->shape(0)) : Vector{};
}

void make_layer(DecoderLayer *self, SharedPacked qkv, SharedPacked output, SharedPacked gate_up, SharedPacked down,
                Values attention_norm, Values feed_forward_norm, OptionalValues qkv_bias, OptionalValues output_bias,
                OptionalValues gate_up_bias, OptionalValues down_bias, OptionalValues q_norm, OptionalValues k_norm,
                OptionalValues post_attention_norm, OptionalValues post_feed_forward_norm, int window, size_t rotary) {
    new (self) DecoderLayer{std::move(qkv),
                            std::move(output),
                            std::move(gate_up),
                            std::move(down),
                            copy_of(qkv_bias),
                            copy_of(output_bias),
                            copy_of(gate_up_bias),
                            copy_of(down_bias),
                            copy_of(attention_norm),
                            copy_of(q_norm),
                            copy_of(k_norm),
                            copy_of(post_attention_norm),
                            copy_of(feed_forward_norm),
                            copy_of(post_feed_forward_norm),
                            window,
                            rotary};
}

Activation activation_of(const std::string &name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    refuse("activation " + name + "; silu and gelu_tanh are supported");
}

Pairing pairing_of(const std::string &name) {
    if (name == "halves") return Pairing::halves;
    if (name == "interleaved") return Pairing::interleaved;
    refuse("rotary layout " + name + "; halves and interleaved are supported");
}

EmbeddingTable table_of(const std::string &type_name, const Bytes &bytes, size_t hidden_size) {
    const BlockFormat *format = find_block_format(type_name);
    if (!format) refuse("unknown tensor type " + type_name);
    const size_t row_bytes = hidden_size / format->elements * format->bytes;
    if (hidden_size % format->elements || row_bytes == 0 || bytes.shape(0) % row_bytes)
        refuse("an embedding of type " + type_name + " that is not whole rows");
    return {format, bytes.data(), bytes.shape(0) / row_bytes, std::make_shared<Bytes>(bytes)};
}

// Logits' memory is used again when Python has dropped it: a fresh one would be zeroed by the system page by page. It
// begins as minus infinity, which logits of tokens that a reduced head lacks stay.
class LogitsPool : public std::enable_shared_from_this<LogitsPool> {
   public:
    using Array = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

    Array lease(size_t num_rows, size_t width) {
        const size_t num_bytes = num_rows * width * sizeof(float);
        auto *lease = new Lease{shared_from_this(), take(num_bytes)};
        nb::capsule owner(lease, [](void *p) noexcept { give_back(static_cast<Lease *>(p)); });
        return Array(lease->buffer.floats(), {num_rows, width}, owner);
    }

    size_t num_bytes() {
        const std::lock_guard lock(mutex_);
        return num_bytes_;
    }

   private:
    struct Lease {
        std::shared_ptr<LogitsPool> pool;
        AlignedBuffer buffer;
    };
    static constexpr size_t most_kept = 2;

    AlignedBuffer take(size_t num_bytes) {
        AlignedBuffer buffer;
        const std::lock_guard lock(mutex_);
        if (!free_.empty()) {
            buffer = std::move(free_.back());
            free_.pop_back();
        }
        if (buffer.num_bytes() >= num_bytes) return buffer;
        num_bytes_ -= buffer.num_bytes();
        buffer.reserve(num_bytes);
        std::fill_n(buffer.floats(), num_bytes / sizeof(float), -std::numeric_limits<float>::infinity());
        num_bytes_ += num_bytes;
        return buffer;
    }

    static void give_back(Lease *lease) {
        {
            LogitsPool &pool = *lease->pool;
            const std::lock_guard lock(pool.mutex_);
            if (pool.free_.size() < most_kept) pool.free_.push_back(std::move(lease->buffer));
            else pool.num_bytes_ -= lease->buffer.num_bytes();
        }
        delete lease;
    }

    std::mutex mutex_;
    std::vector<AlignedBuffer> free_;
    size_t num_bytes_ = 0;
};

struct PyModel {
    std::unique_ptr<Model> model;
    std::shared_ptr<LogitsPool> logits = std::make_shared<LogitsPool>();
};

void make_model(PyModel *self, size_t hidden_size, size_t inner_size, int num_heads, int num_kv_heads, int head_dim,
                float norm_eps, float embedding_scale, float score_scale, const std::string &activation,
                const std::string &rotary_layout, const std::tuple<std::string, Bytes> &embedding,
                const std::vector<DecoderLayer> &layers, const std::vector<std::tuple<Values, float>> &rotaries,
                Values final_norm, SharedPacked head, const std::vector<std::int32_t> &head_ids) {
    const DecoderShape shape{hidden_size,     inner_size,  num_heads,   num_kv_heads, head_dim, norm_eps,
                             embedding_scale, score_scale, activation_of(activation), pairing_of(rotary_layout)};
    DecoderWeights weights{table_of(std::get<0>(embedding), std::get<1>(embedding), hidden_size), layers, {},
                           copy_of(final_norm), std::move(head), head_ids};
    for (const auto &[frequencies, scale] : rotaries) weights.rotaries.emplace_back(copy_of(frequencies), scale);
    new (self) PyModel{std::make_unique<Model>(shape, std::move(weights))};
}

// Token ids, start, pages, number of logits.
using Sequence = std::tuple<std::vector<std::int32_t>, int, std::vector<std::int32_t>, size_t>;

LogitsPool::Array forward(PyModel &self, std::vector<Sequence> slices, KvStore &kv) {
    std::vector<SequenceRows> sequences;
    size_t num_logits = 0;
    for (auto &[token_ids, start, pages, wanted] : slices) {
        sequences.push_back({start, std::move(token_ids), std::move(pages), wanted});
        num_logits += wanted;
    }
    LogitsPool::Array logits = self.logits->lease(num_logits, self.model->vocab_size());
    float *data = logits.data();
    {
        nb::gil_scoped_release release;
        self.model->forward(sequences, kv, data);
    }
    return logits;
}

using KvMemory = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

KvStore kv_in(const PyModel &self, KvMemory pages, size_t blocks_per_page) {
    return self.model->kv_in(pages.data(), pages.shape(0), pages.shape(1), blocks_per_page,
                             std::make_shared<KvMemory>(pages));
}

// Not touched: the system gives it page by page as it is written.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>> allocate_pages(size_t num_pages, size_t page_bytes) {
    if (page_bytes && num_pages > std::numeric_limits<std::ptrdiff_t>::max() / page_bytes) throw std::bad_alloc();
    auto *memory = new Memory(allocate(num_pages * page_bytes));
    const nb::capsule owner(memory, [](void *p) noexcept { delete static_cast<Memory *>(p); });
    return {memory->get(), {num_pages, page_bytes}, owner};
}

nb::ndarray<nb::numpy, std::uint16_t, nb::ndim<1>> halves(KvStore &self) {
    return {self.halves(), {self.num_bytes() / sizeof(std::uint16_t)}, nb::handle()};
}

std::map<std::string, double> stage_seconds(const PyModel &self) {
    std::map<std::string, double> seconds;
    for (size_t i = 0; i < stage_names.size(); ++i) seconds[stage_names[i]] = self.model->stages().seconds()[i];
    return seconds;
}

}  // namespace

void bind_model(nb::module_ &module) {
    module.def("allocate_pages", &allocate_pages, "num_pages"_a, "page_bytes"_a,
               "Memory that nothing has been written to, uint8 [num_pages, page_bytes]; MemoryError if there is none.");
    nb::class_<KvStore>(module, "KvStore", "Paged keys and values of one decoder, halves.")
        .def_prop_ro("num_pages", &KvStore::num_pages)
        .def_prop_ro("nbytes", &KvStore::num_bytes)
        .def("halves", &halves, nb::keep_alive<0, 1>(), "All of it, uint16 bits, for inspection and tests.");
    nb::class_<DecoderLayer>(module, "DecoderLayer", "Weights of one layer of a decoder.")
        .def("__init__", &make_layer, nb::kw_only(), "qkv"_a, "output"_a, "gate_up"_a, "down"_a, "attention_norm"_a,
             "feed_forward_norm"_a, "qkv_bias"_a.none(), "output_bias"_a.none(), "gate_up_bias"_a.none(),
             "down_bias"_a.none(), "q_norm"_a.none(), "k_norm"_a.none(), "post_attention_norm"_a.none(),
             "post_feed_forward_norm"_a.none(), "window"_a, "rotary"_a);
    nb::class_<PyModel>(module, "Model", "A whole decoder: one call is one forward pass.")
        .def("__init__", &make_model, nb::kw_only(), "hidden_size"_a, "inner_size"_a, "num_heads"_a, "num_kv_heads"_a,
             "head_dim"_a, "norm_eps"_a, "embedding_scale"_a, "score_scale"_a, "activation"_a, "rotary_layout"_a,
             "embedding"_a, "layers"_a, "rotaries"_a, "final_norm"_a, "head"_a, "head_ids"_a)
        .def_prop_ro("weight_bytes", [](const PyModel &self) { return self.model->weight_bytes(); })
        .def_prop_ro("workspace_bytes",
                     [](const PyModel &self) { return self.model->workspace_bytes() + self.logits->num_bytes(); })
        .def("workspace_bytes_for",
             [](const PyModel &self, size_t num_rows, size_t num_logits, size_t num_positions) {
                 return self.model->workspace_bytes(num_rows, num_logits, num_positions);
             },
             "num_rows"_a, "num_logits"_a, "num_positions"_a,
             "Most bytes of memory that passes of so many rows and logits share, sequences being of so many positions.")
        .def_prop_ro("kv_unit_bytes", [](const PyModel &self) { return self.model->kv_unit_bytes(); },
                     "What a page of KV must be a multiple of.")
        .def("kv_in", &kv_in, "pages"_a.noconvert(), "blocks_per_page"_a,
             "Keys and values in memory [num_pages, page_bytes], blocks of 16 positions side by side in each page.")
        .def("forward", &forward, "sequences"_a, "kv"_a,
             "Run (token ids, start, pages, number of logits) each; float32 [sum of logits, vocab]. Not to be written "
             "to: what a reduced head lacks is minus infinity from the beginning.")
        .def("stage_seconds", &stage_seconds, "Seconds spent in each stage of all forward passes since the last reset.")
        .def("reset_stages", [](PyModel &self) { self.model->reset_stages(); });
}

}  // namespace paceline
