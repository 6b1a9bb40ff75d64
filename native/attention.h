// Attention over a paged store of keys and values, for ragged rows.
//
// Store. One layer has two arrays of halves with the same block numbers; a block holds 16 positions:
//     keys   [num_blocks][num_kv_heads][head_dim][16]     a dimension's 16 positions side by side
//     values [num_blocks][num_kv_heads][16][head_dim]
// Keys lie so that scores of 16 positions fill a register without a sum across it.
//
// Exactness. Positions are cut into partitions of 256, counted from position 0. A row's answer is a function of its own
// query and of the keys and values it sees: each partition's part is computed by a fixed sequence of operations, and
// parts are merged in rising order, whether one task does all of them or each has its own. Which rows share a task, how
// many threads there are and where a chunk of a prompt ends cannot change a bit (see attention_kernels.inl).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline {

inline constexpr int kv_block_size = 16, attention_partition = 256, max_attention_head_dim = 512;

struct AttentionShape {
    int num_heads, num_kv_heads;  // the first a multiple of the second
    int head_dim;                 // a multiple of 8, at most max_attention_head_dim
    float scale;                  // factor on the scores
    int window;                   // positions that a query sees, its own included; 0 is all before it
};

// Rows of one sequence at consecutive positions.
struct AttentionSlice {
    int first_row;  // index of the slice's first row among all rows
    int num_rows;
    int start;                      // position of that row
    const std::int32_t *block_ids;  // cover positions 0 .. start + num_rows - 1; must outlive the plan
};

// Where one layer's numbers are. Rows may lie within wider ones: strides are in floats.
struct AttentionBuffers {
    const float *queries;  // [rows][num_heads][head_dim]
    std::size_t query_stride;
    const std::uint16_t *keys, *values;  // of the layer
    float *out;                          // [rows][num_heads][head_dim]; queries and out must not overlap
    std::size_t out_stride;
    float *scratch;  // [AttentionPlan::scratch_size()], written by `attend` and read by `finish`
};

// How the rows of one forward pass are cut into tasks; made once, used for all layers of one shape.
//
// For each layer: write its keys and values, then `attend` every task (in any order, on any thread), then, after all of
// them, `finish` every row (likewise).
class AttentionPlan {
   public:
    AttentionPlan(const AttentionShape &shape, const AttentionSlice *slices, std::size_t num_slices);

    std::size_t num_tasks() const { return tasks_.size(); }
    std::size_t num_rows() const { return tile_of_row_.size(); }
    std::size_t scratch_size() const { return scratch_size_; }  // floats
    // The most that it can be for so many rows of sequences of so many positions.
    static std::size_t most_scratch(const AttentionShape &shape, std::size_t num_rows, std::size_t num_positions);

    void attend(const AttentionBuffers &buffers, std::size_t task) const;
    // Leaves the row's answer in buffers.out.
    void finish(const AttentionBuffers &buffers, std::size_t row) const;

   private:
    // Consecutive rows of one slice that share each read of keys and values.
    struct Tile {
        int first_row, num_rows, start;
        const std::int32_t *block_ids;
        int first_partition, end_partition;
        bool is_split;        // every partition is a task of its own, and its result goes to the scratch
        std::size_t scratch;  // where the tile's part of it begins
    };
    struct Task {
        std::uint32_t tile;
        int kv_head, first_partition, end_partition;
    };
    struct Range {
        int first, end;
    };
    // What queries have so far: sum 0 is nothing yet.
    struct State {
        float *maxima, *sums;  // [num_queries]
        float *mixed;          // [num_queries][head_dim]; where it is null, the rows of `out` are meant
    };

    int group() const { return shape_.num_heads / shape_.num_kv_heads; }
    Range visible(int position) const;
    void cut(const AttentionSlice &slice);
    void add_tasks();
    std::size_t state_size(const Tile &tile) const;
    State scratch_state(const AttentionBuffers &buffers, const Tile &tile, int kv_head, int partition) const;
    void attend_partition(const AttentionBuffers &buffers, const Tile &tile, int kv_head, int partition,
                          State state) const;
    void attend_whole(const AttentionBuffers &buffers, const Tile &tile, int kv_head) const;

    AttentionShape shape_;
    std::vector<Tile> tiles_;
    std::vector<Task> tasks_;
    std::vector<std::uint32_t> tile_of_row_;
    std::size_t scratch_size_ = 0;
};

}  // namespace paceline
