#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "ops_table.h"

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;

// Queries (rows times heads of a group) that share a tile: enough to pay for a read of keys and values from memory, few
// enough that a short prompt still makes several tasks.
constexpr int max_queries = 64;
// A task that would be more than this share of all work is cut at its partitions, so that few rows with a long context,
// or one long context among short ones, still keep every thread busy.
constexpr double largest_share = 1.0 / 16.0;

constexpr int blocks_per_partition = attention_partition / kv_block_size;

void check(const AttentionShape &shape) {
    const bool heads_fit = shape.num_kv_heads >= 1 && shape.num_heads >= 1 &&
                           shape.num_heads % shape.num_kv_heads == 0 &&
                           shape.num_heads / shape.num_kv_heads <= max_queries;
    if (!heads_fit)
        throw std::invalid_argument(std::to_string(shape.num_heads) + " heads on " +
                                    std::to_string(shape.num_kv_heads) + " kv heads; a multiple of them, up to " +
                                    std::to_string(max_queries) + " times, is supported");
    if (shape.head_dim < 8 || shape.head_dim % 8 || shape.head_dim > max_attention_head_dim)
        throw std::invalid_argument("head_dim " + std::to_string(shape.head_dim) + "; a multiple of 8 up to " +
                                    std::to_string(max_attention_head_dim) + " is supported");
    if (shape.window < 0) throw std::invalid_argument("a window of " + std::to_string(shape.window) + " positions");
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape &shape, const AttentionSlice *slices, size_t num_slices)
    : shape_(shape) {
    check(shape);
    for (size_t i = 0; i < num_slices; ++i) cut(slices[i]);
    add_tasks();
}

AttentionPlan::Range AttentionPlan::visible(int position) const {
    return {shape_.window ? std::max(0, position + 1 - shape_.window) : 0, position + 1};
}

void AttentionPlan::cut(const AttentionSlice &slice) {
    const int rows_per_tile = std::max(1, max_queries / group());
    tile_of_row_.resize(std::max(tile_of_row_.size(), static_cast<size_t>(slice.first_row + slice.num_rows)));
    for (int row = 0; row < slice.num_rows; row += rows_per_tile) {
        const int num_rows = std::min(rows_per_tile, slice.num_rows - row), start = slice.start + row;
        std::fill_n(tile_of_row_.begin() + slice.first_row + row, num_rows, static_cast<std::uint32_t>(tiles_.size()));
        tiles_.push_back({slice.first_row + row, num_rows, start, slice.block_ids,
                          visible(start).first / attention_partition, (start + num_rows - 1) / attention_partition + 1,
                          false, 0});
    }
}

void AttentionPlan::add_tasks() {
    const auto work_of = [](const Tile &tile) {
        return static_cast<double>(tile.num_rows) * (tile.end_partition - tile.first_partition);
    };
    double all_work = 0;
    for (const Tile &tile : tiles_) all_work += work_of(tile) * shape_.num_kv_heads;
    for (size_t i = 0; i < tiles_.size(); ++i) {
        Tile &tile = tiles_[i];
        const int num_partitions = tile.end_partition - tile.first_partition;
        tile.is_split = num_partitions > 1 && work_of(tile) > largest_share * all_work;
        if (tile.is_split) {
            tile.scratch = scratch_size_;
            scratch_size_ += state_size(tile) * static_cast<size_t>(num_partitions * shape_.num_kv_heads);
        }
        const int step = tile.is_split ? 1 : num_partitions;
        for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head)
            for (int partition = tile.first_partition; partition < tile.end_partition; partition += step)
                tasks_.push_back({static_cast<std::uint32_t>(i), kv_head, partition, partition + step});
    }
}

size_t AttentionPlan::most_scratch(const AttentionShape &shape, size_t num_rows, size_t num_positions) {
    // Tiles that are more than a share of all work number less than one over that share, kv heads counted apart; a tile
    // has no more queries than all rows have.
    const auto kv_heads = static_cast<size_t>(shape.num_kv_heads), heads = static_cast<size_t>(shape.num_heads);
    const size_t most_tiles = static_cast<size_t>(1.0 / largest_share) / kv_heads + 1;
    const size_t rows_per_tile = std::max<size_t>(1, max_queries / (heads / kv_heads));
    const size_t most_rows = std::min(num_rows, most_tiles * rows_per_tile);
    const size_t num_partitions = (num_positions + attention_partition - 1) / attention_partition;
    return most_rows * heads * static_cast<size_t>(shape.head_dim + 2) * num_partitions;
}

size_t AttentionPlan::state_size(const Tile &tile) const {
    return static_cast<size_t>(tile.num_rows * group()) * static_cast<size_t>(shape_.head_dim + 2);
}

AttentionPlan::State AttentionPlan::scratch_state(const AttentionBuffers &buffers, const Tile &tile, int kv_head,
                                                  int partition) const {
    const int num_partitions = tile.end_partition - tile.first_partition;
    const int index = kv_head * num_partitions + partition - tile.first_partition;
    float *state = buffers.scratch + tile.scratch + static_cast<size_t>(index) * state_size(tile);
    const int num_queries = tile.num_rows * group();
    return {state, state + num_queries, state + 2 * num_queries};
}

void AttentionPlan::attend_partition(const AttentionBuffers &buffers, const Tile &tile, int kv_head, int partition,
                                     State state) const {
    const int first_slot = partition * attention_partition;
    const float *queries[max_queries];
    float *mixed[max_queries];
    int first[max_queries], end[max_queries];
    int num_queries = 0, skipped = 0, last_end = 0;
    for (int row = 0; row < tile.num_rows; ++row) {
        const Range seen = visible(tile.start + row);
        const int from = std::max(seen.first - first_slot, 0),
                  to = std::min(seen.end - first_slot, attention_partition);
        // The rows that see some of the partition are neighbours: later ones begin and end later.
        if (from >= to) {
            if (num_queries == 0) skipped += group();
            continue;
        }
        last_end = to;
        const size_t all_rows_row = static_cast<size_t>(tile.first_row + row);
        for (int i = 0; i < group(); ++i, ++num_queries) {
            const size_t offset = static_cast<size_t>((kv_head * group() + i) * shape_.head_dim);
            queries[num_queries] = buffers.queries + all_rows_row * buffers.query_stride + offset;
            mixed[num_queries] = state.mixed ? state.mixed + static_cast<size_t>(row * group() + i) *
                                                                 static_cast<size_t>(shape_.head_dim)
                                             : buffers.out + all_rows_row * buffers.out_stride + offset;
            first[num_queries] = from;
            end[num_queries] = to;
        }
    }
    if (num_queries == 0) return;
    const uint16_t *keys[blocks_per_partition], *values[blocks_per_partition];
    const size_t head_size = static_cast<size_t>(shape_.head_dim) * kv_block_size;
    for (int block = 0; block * kv_block_size < last_end; ++block) {
        // Blocks that no row sees may have been given back to the pool: their numbers are looked up, never their
        // contents.
        const size_t id = static_cast<size_t>(tile.block_ids[partition * blocks_per_partition + block]);
        const size_t offset =
            (id * static_cast<size_t>(shape_.num_kv_heads) + static_cast<size_t>(kv_head)) * head_size;
        keys[block] = buffers.keys + offset;
        values[block] = buffers.values + offset;
    }
    op_kernels().attend({num_queries, shape_.head_dim, shape_.scale, queries, first, end, keys, values,
                         state.maxima + skipped, state.sums + skipped, mixed});
}

void AttentionPlan::attend_whole(const AttentionBuffers &buffers, const Tile &tile, int kv_head) const {
    float maxima[max_queries], sums[max_queries] = {};
    for (int partition = tile.first_partition; partition < tile.end_partition; ++partition)
        attend_partition(buffers, tile, kv_head, partition, {maxima, sums, nullptr});
    for (int query = 0; query < tile.num_rows * group(); ++query) {
        const size_t row = static_cast<size_t>(tile.first_row + query / group());
        const int head = kv_head * group() + query % group();
        op_kernels().divide(buffers.out + row * buffers.out_stride + static_cast<size_t>(head * shape_.head_dim),
                            sums[query], static_cast<size_t>(shape_.head_dim));
    }
}

void AttentionPlan::attend(const AttentionBuffers &buffers, size_t task_index) const {
    const Task &task = tasks_[task_index];
    const Tile &tile = tiles_[task.tile];
    if (!tile.is_split) return attend_whole(buffers, tile, task.kv_head);
    const State state = scratch_state(buffers, tile, task.kv_head, task.first_partition);
    std::fill_n(state.sums, tile.num_rows * group(), 0.0f);
    attend_partition(buffers, tile, task.kv_head, task.first_partition, state);
}

void AttentionPlan::finish(const AttentionBuffers &buffers, size_t row) const {
    const Tile &tile = tiles_[tile_of_row_[row]];
    if (!tile.is_split) return;
    const int row_in_tile = static_cast<int>(row) - tile.first_row;
    const Range seen = visible(tile.start + row_in_tile);
    const size_t head_dim = static_cast<size_t>(shape_.head_dim);
    for (int head = 0; head < shape_.num_heads; ++head) {
        const int query = row_in_tile * group() + head % group();
        float *out = buffers.out + row * buffers.out_stride + static_cast<size_t>(head) * head_dim;
        float maximum = 0.0f, sum = 0.0f;
        for (int partition = seen.first / attention_partition; partition * attention_partition < seen.end;
             ++partition) {
            const State part = scratch_state(buffers, tile, head / group(), partition);
            op_kernels().merge(maximum, sum, out, part.maxima[query], part.sums[query],
                               part.mixed + static_cast<size_t>(query) * head_dim, shape_.head_dim);
        }
        op_kernels().divide(out, sum, head_dim);
    }
}

}  // namespace paceline
