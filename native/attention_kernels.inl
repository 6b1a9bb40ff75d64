// Attention within one partition, once for all instruction sets; included by the ops_*.cpp files after ops_kernels.inl.
//
// A tile of queries shares each read of keys and values. Every query has running sums of its own, all of them filled in
// one order: a score adds up over the head's dimensions, the weights' sum over blocks and then lanes, the mixed values
// over positions. What a query does not see is left out, not multiplied by zero, so that not even infinities leak in.

namespace paceline {
namespace {

constexpr int slots_per_block = 16, slots_per_partition = 256, max_head_dim = 512;

template <int N>
struct Count {
    static constexpr int value = N;
};

// Calls f(Count<n>{}) for n from 1 to Most.
template <int Most, class F>
PACELINE_INLINE void with_count(int n, F f) {
    if constexpr (Most == 1) {
        f(Count<1>{});
    } else if (n == Most) {
        f(Count<Most>{});
    } else {
        with_count<Most - 1>(n, f);
    }
}

struct QueryTile {
    explicit QueryTile(const AttendCall &whole) : call(whole) {}

    const AttendCall &call;
    int begin = 0;  // the tile's first query
    alignas(64) float weights[tile_queries][slots_per_partition];
    alignas(64) float mixed[tile_queries][max_head_dim];
};

// Products of Q queries and the keys of B blocks, the first of them `block`.
template <int Q, int B>
void score(QueryTile &tile, int block) {
    const AttendCall &call = tile.call;
    Floats sums[Q][B];
    const float *query[Q];
    const uint16_t *keys[B];
    for (int q = 0; q < Q; ++q) query[q] = call.queries[tile.begin + q];
    for (int b = 0; b < B; ++b) keys[b] = call.keys[block + b];
    for (int q = 0; q < Q; ++q)
        for (int b = 0; b < B; ++b) sums[q][b] = all(0.0f);
    for (int d = 0; d < call.head_dim; ++d) {
        Floats key[B];
        for (int b = 0; b < B; ++b) key[b] = load_half(keys[b] + slots_per_block * d);
        for (int q = 0; q < Q; ++q) {
            const Floats factor = all(query[q][d]);
            for (int b = 0; b < B; ++b) sums[q][b] = fma(factor, key[b], sums[q][b]);
        }
    }
    for (int q = 0; q < Q; ++q)
        for (int b = 0; b < B; ++b) store(tile.weights[q] + slots_per_block * (block + b), sums[q][b]);
}

struct Softmax {
    float maximum, sum;
};

// Turns the scores of the slots first .. end - 1 into exp(score - greatest); the rest of the blocks is not to be read.
Softmax weigh(float *weights, int first, int end, float scale) {
    const int first_block = first / slots_per_block, end_block = (end + slots_per_block - 1) / slots_per_block;
    const Floats factor = all(scale), lowest = all(-__builtin_inff());
    Floats peak = lowest;
    for (int b = first_block; b < end_block; ++b) {
        float *block = weights + slots_per_block * b;
        const int from = first > slots_per_block * b ? first - slots_per_block * b : 0;
        const int to = end < slots_per_block * (b + 1) ? end - slots_per_block * b : slots_per_block;
        Floats scores = load(block) * factor;
        if (from > 0 || to < slots_per_block) scores = keep_lanes(scores, from, to, -__builtin_inff());
        store(block, scores);
        peak = maximum(scores, peak);
    }
    const float peak_of_all = greatest(peak);
    const Floats shift = all(peak_of_all);
    Floats total = all(0.0f);
    for (int b = first_block; b < end_block; ++b) {
        float *block = weights + slots_per_block * b;
        const Floats shares = exp(load(block) - shift);
        store(block, shares);
        total = total + shares;
    }
    return {peak_of_all, sum(total)};
}

// Adds up weight times value over the slots that each of Q queries sees, for N vectors of dimensions from `dim` on, or
// for half a vector.
template <int Q, int N, bool IsHalf>
void mix(QueryTile &tile, int dim) {
    const AttendCall &call = tile.call;
    const int *first = call.first + tile.begin, *end = call.end + tile.begin;
    int least_first = first[0], most_first = first[0], least_end = end[0], most_end = end[0];
    for (int q = 1; q < Q; ++q) {
        least_first = first[q] < least_first ? first[q] : least_first;
        most_first = first[q] > most_first ? first[q] : most_first;
        least_end = end[q] < least_end ? end[q] : least_end;
        most_end = end[q] > most_end ? end[q] : most_end;
    }
    Floats sums[Q][N];
    for (int q = 0; q < Q; ++q)
        for (int n = 0; n < N; ++n) sums[q][n] = all(0.0f);
    const auto add_slots = [&](int from, int to, auto seen_by_all) {
        for (int slot = from; slot < to; ++slot) {
            const uint16_t *row = call.values[slot / slots_per_block] + (slot % slots_per_block) * call.head_dim + dim;
            Floats value[N];
            for (int n = 0; n < N; ++n) value[n] = IsHalf ? load_eight_halves(row) : load_half(row + 16 * n);
            for (int q = 0; q < Q; ++q) {
                if (!decltype(seen_by_all)::value && (slot < first[q] || slot >= end[q])) continue;
                const Floats weight = all(tile.weights[q][slot]);
                for (int n = 0; n < N; ++n) sums[q][n] = fma(weight, value[n], sums[q][n]);
            }
        }
    };
    if (most_first < least_end) {
        add_slots(least_first, most_first, Count<0>{});
        add_slots(most_first, least_end, Count<1>{});
        add_slots(least_end, most_end, Count<0>{});
    } else {
        add_slots(least_first, most_end, Count<0>{});
    }
    for (int q = 0; q < Q; ++q)
        for (int n = 0; n < N; ++n) {
            if (IsHalf)
                store_first(tile.mixed[q] + dim, sums[q][n], 8);
            else
                store(tile.mixed[q] + dim + 16 * n, sums[q][n]);
        }
}

PACELINE_INLINE float exp_of(float x) {
    float lanes[16];
    store(lanes, exp(all(x)));
    return lanes[0];
}

// Joins what two sets of positions say, the earlier one first; the result stands where the earlier one was.
void merge(float &peak, float &total, float *__restrict mixed, float other_peak, float other_total,
           const float *__restrict other_mixed, int head_dim) {
    if (total == 0.0f) {
        peak = other_peak;
        total = other_total;
        for (int d = 0; d < head_dim; ++d) mixed[d] = other_mixed[d];
        return;
    }
    const float joint = peak < other_peak ? other_peak : peak;
    const float factor = exp_of(peak - joint), other_factor = exp_of(other_peak - joint);
    peak = joint;
    total = total * factor + other_total * other_factor;
    for (int d = 0; d < head_dim; ++d) mixed[d] = mixed[d] * factor + other_mixed[d] * other_factor;
}

template <int Q>
void attend_tile(QueryTile &tile) {
    const AttendCall &call = tile.call;
    int least_first = slots_per_partition, most_end = 0;
    for (int q = 0; q < Q; ++q) {
        const int first = call.first[tile.begin + q], end = call.end[tile.begin + q];
        least_first = first < least_first ? first : least_first;
        most_end = end > most_end ? end : most_end;
    }
    const int end_block = (most_end + slots_per_block - 1) / slots_per_block;
    for (int block = least_first / slots_per_block; block < end_block; block += tile_vectors)
        with_count<tile_vectors>(end_block - block < tile_vectors ? end_block - block : tile_vectors,
                                 [&](auto count) { score<Q, decltype(count)::value>(tile, block); });
    Softmax softmax[Q];
    for (int q = 0; q < Q; ++q)
        softmax[q] = weigh(tile.weights[q], call.first[tile.begin + q], call.end[tile.begin + q], call.scale);
    const int num_vectors = call.head_dim / 16;
    for (int n = 0; n < num_vectors; n += tile_vectors)
        with_count<tile_vectors>(num_vectors - n < tile_vectors ? num_vectors - n : tile_vectors,
                                 [&](auto count) { mix<Q, decltype(count)::value, false>(tile, 16 * n); });
    if (call.head_dim % 16) mix<Q, 1, true>(tile, 16 * num_vectors);
    for (int q = 0; q < Q; ++q) {
        const int i = tile.begin + q;
        merge(call.maxima[i], call.sums[i], call.mixed[i], softmax[q].maximum, softmax[q].sum, tile.mixed[q],
              call.head_dim);
    }
}

// In as few tiles as there can be, of sizes that differ by one at most: a tile of one query waits for its own sums.
void attend(const AttendCall &call) {
    QueryTile tile(call);
    for (int left = call.num_queries; left > 0;) {
        const int num_tiles = (left + tile_queries - 1) / tile_queries;
        const int count = (left + num_tiles - 1) / num_tiles;
        with_count<tile_queries>(count, [&](auto size) { attend_tile<decltype(size)::value>(tile); });
        tile.begin += count;
        left -= count;
    }
}

}  // namespace
}  // namespace paceline
