// The linear kernels, for any `Simd`: a struct of types and operations of one instruction set. Included once by the
// file of each, inside an unnamed namespace, so that no code of one leaks into another.
//
//   Bytes, Ints, Floats       a vector of 4 * lanes bytes, lanes int32, lanes float
//   lanes                     16, or 8: then a block is worked on in two parts
//   scaled                    whether products of any byte with int8 fit, so that offsets are always 128; else weights
//                             of formats with an offset are shifted down again
//   signed_eight_bits         whether 8-bit weights are made signed, and so have no offset
//   Tile<bits>::rows          rows of a register tile of `few`, for weights of that many bits
//   Tile<bits>::paired_rows   rows of a tile of two vectors side by side, which share the loads of inputs: of two blocks
//                             where a vector holds a block, else of a block's two parts
//   panel_rows, panel_columns rows of a register tile of `many`, and vectors side by side
//
// How formats unpack: linear_unpack.inl.

// How a group's products are summed and scaled.
enum class Kind {
    minimum,  // one scale and a minimum for 32 inputs
    offset,   // one scale for 32 inputs, weights offset by 128
    halves,   // a scale for each 16 inputs, weights offset by 128
};

template <std::size_t n>
using Index = std::integral_constant<std::size_t, n>;

template <class F, std::size_t... n>
inline void for_each_index(F f, std::index_sequence<n...>) {
    (f(Index<n>{}), ...);
}

// A group of 32 inputs of `lanes` rows, unpacked. Kernels take either this or what an Unpack has in its place, a Packed
// group that unpacks a vector when it is asked for it: a few rows would wait for a way through memory.
template <class Simd>
struct Group {
    typename Simd::Bytes weights[8];
    typename Simd::Floats scale, second;  // second: minimum, or the scale of the upper half

    template <std::size_t j>
    typename Simd::Bytes weight(Index<j>) const {
        return weights[j];
    }
};

#include "linear_unpack.inl"

// What the accumulator starts from: magic less the offset's share, which is 128 / 2^shift for weights shifted down.
template <class Simd, int shift>
inline typename Simd::Ints start_of(const std::int32_t &start) {
    if constexpr (Simd::scaled) {
        return Simd::broadcast(start);
    } else if constexpr (shift == 0 && Simd::signed_eight_bits) {
        return Simd::broadcast(magic_bits);
    } else {
        return Simd::broadcast(magic_bits + ((start - magic_bits) >> shift));
    }
}

// What a chain of products of a group begins with.
template <class Simd, class Unpack, std::size_t chain>
inline typename Simd::Ints begin_of(const ActivationGroup &row, Index<chain>) {
    if constexpr (Simd::template Dot<Unpack::bits>::begins_in_pairs) {
        static_assert(Unpack::kind == Kind::halves && Unpack::bits == 6);
        return Simd::broadcast_pair(row.start_pairs[chain]);
    } else if constexpr (Unpack::kind == Kind::minimum) {
        return Simd::broadcast(magic_bits);
    } else {
        return start_of<Simd, Unpack::shift>(Unpack::kind == Kind::halves ? row.start16[chain] : row.start32);
    }
}

// Adds to `sums` the products of a group of each of `columns` vectors with M rows. All rows' chains of products run side
// by side: a chain alone would wait for each instruction's latency.
template <class Simd, class Unpack, std::size_t M, std::size_t columns, class AnyGroup>
inline void accumulate(const AnyGroup *const (&groups)[columns], const ActivationGroup *rows, std::size_t stride,
                       typename Simd::Floats (&sums)[M][columns]) {
    constexpr std::size_t chains = Unpack::kind == Kind::halves ? 2 : 1, steps = 8 / chains;
    using Dot = typename Simd::template Dot<Unpack::bits>;
    const auto add_chain = [&](auto chain) __attribute__((always_inline)) {
        typename Dot::Sum products[M][columns];
        for (std::size_t m = 0; m < M; ++m) {
            const ActivationGroup &row = rows[m * stride];
            const auto start = begin_of<Simd, Unpack>(row, chain);
            for (std::size_t c = 0; c < columns; ++c) products[m][c] = Dot::begin(start);
        }
        const auto add_step = [&](auto step) __attribute__((always_inline)) {
            constexpr std::size_t j = chain * steps + step;
            typename Simd::Bytes weights[columns];
            for (std::size_t c = 0; c < columns; ++c) weights[c] = groups[c]->weight(Index<j>{});
            for (std::size_t m = 0; m < M; ++m) {
                const auto inputs = Simd::broadcast4(rows[m * stride].q + 4 * j);
                for (std::size_t c = 0; c < columns; ++c) Dot::step(products[m][c], weights[c], inputs, step);
            }
        };
        for_each_index(add_step, std::make_index_sequence<steps>());
        for (std::size_t m = 0; m < M; ++m) {
            const ActivationGroup &row = rows[m * stride];
            for (std::size_t c = 0; c < columns; ++c) {
                const auto value = Simd::scale_sum(Dot::end(products[m][c]), row);
                sums[m][c] = Simd::multiply_add(chain ? groups[c]->second : groups[c]->scale, value, sums[m][c]);
                if constexpr (Unpack::kind == Kind::minimum)
                    sums[m][c] = Simd::subtract_product(groups[c]->second, row.sum, sums[m][c]);
            }
        }
    };
    for_each_index(add_chain, std::make_index_sequence<chains>());
}

// Where the unit lies that will be worked on some units after unit `u` of a block; behind the last one, that is in the
// block `num_blocks` further on. Far enough ahead to cover memory's latency at full bandwidth.
template <class Unpack>
inline const std::uint8_t *unit_ahead(const std::uint8_t *block, std::size_t u, std::size_t num_units,
                                      std::size_t num_blocks) {
    constexpr std::size_t distance = 3072, units = (distance + Unpack::unit_bytes - 1) / Unpack::unit_bytes;
    const std::size_t ahead = u + units < num_units ? u + units : u + units + (num_blocks - 1) * num_units;
    return block + ahead * Unpack::unit_bytes;
}

// Asks for the share of `unit` that belongs to group `g`: a burst for a whole unit would fill the queue of misses and make
// products wait. Past the last block it touches nothing that matters.
template <class Unpack>
inline void prefetch_group(const std::uint8_t *unit, std::size_t g) {
    constexpr std::size_t lines = Unpack::unit_bytes / 64;
    for (std::size_t i = lines * g / Unpack::groups; i < lines * (g + 1) / Unpack::groups; ++i)
        __builtin_prefetch(unit + 64 * i, 0, 3);
}

// M rows times `num_blocks` blocks.
template <class Simd, class Unpack, std::size_t M, std::size_t num_blocks>
void few_tile(const std::uint8_t *const *blocks, std::size_t num_units, Activations x, float *y) {
    constexpr std::size_t parts = block_rows / Simd::lanes;
    constexpr std::size_t columns = parts == 1 ? num_blocks : M <= Simd::template Tile<Unpack::bits>::paired_rows ? parts : 1;
    constexpr std::size_t turns = num_blocks * parts / columns;
    typename Simd::Floats sums[turns][M][columns];
    for (auto &turn : sums)
        for (auto &row : turn)
            for (auto &sum : row) sum = Simd::zero();
    const ActivationGroup *rows = x.groups;
    for (std::size_t u = 0; u < num_units; ++u) {
        Unpack unpack[num_blocks];
        const std::uint8_t *ahead[num_blocks];
        for (std::size_t b = 0; b < num_blocks; ++b) {
            unpack[b].load(blocks[b] + u * Unpack::unit_bytes);
            ahead[b] = unit_ahead<Unpack>(blocks[b], u, num_units, num_blocks);
        }
        for (std::size_t g = 0; g < Unpack::groups; ++g, ++rows) {
            for (const std::uint8_t *unit : ahead) prefetch_group<Unpack>(unit, g);
            for (std::size_t turn = 0; turn < turns; ++turn) {
                typename Unpack::PackedGroup groups[columns];
                const typename Unpack::PackedGroup *side_by_side[columns];
                for (std::size_t c = 0; c < columns; ++c) {
                    const std::size_t vector = turn * columns + c;
                    groups[c] = unpack[vector / parts].group(g, vector % parts);
                    side_by_side[c] = groups + c;
                }
                accumulate<Simd, Unpack, M, columns>(side_by_side, rows, x.stride, sums[turn]);
            }
        }
    }
    for (std::size_t m = 0; m < M; ++m)
        for (std::size_t turn = 0; turn < turns; ++turn)
            for (std::size_t c = 0; c < columns; ++c)
                Simd::store(y + m * panel_outputs + (turn * columns + c) * Simd::lanes, sums[turn][m][c]);
}

// Rows of one tile; two blocks side by side where both tiles' sums fit the registers, as that halves the loads of inputs.
template <class Simd, class Unpack, std::size_t M = Simd::template Tile<Unpack::bits>::rows>
void few_rows(const std::uint8_t *const *blocks, std::size_t num_blocks, std::size_t num_units, Activations x,
              std::size_t num_rows, float *y) {
    if constexpr (M > 0) {
        if (num_rows != M) return few_rows<Simd, Unpack, M - 1>(blocks, num_blocks, num_units, x, num_rows, y);
        std::size_t block = 0;
        if constexpr (Simd::lanes == block_rows && M <= Simd::template Tile<Unpack::bits>::paired_rows)
            for (; block + 2 <= num_blocks; block += 2)
                few_tile<Simd, Unpack, M, 2>(blocks + block, num_units, x, y + block * block_rows);
        for (; block < num_blocks; ++block)
            few_tile<Simd, Unpack, M, 1>(blocks + block, num_units, x, y + block * block_rows);
    }
}

// All rows, in as few tiles as there can be, of sizes that differ by one at most.
template <class Simd, class Unpack>
void few_tiles(const std::uint8_t *const *blocks, std::size_t num_blocks, std::size_t num_units, Activations x,
               std::size_t num_rows, float *y) {
    constexpr std::size_t most = Simd::template Tile<Unpack::bits>::rows;
    for (std::size_t num_tiles = (num_rows + most - 1) / most; num_tiles > 0; --num_tiles) {
        const std::size_t count = (num_rows + num_tiles - 1) / num_tiles;
        few_rows<Simd, Unpack>(blocks, num_blocks, num_units, x, count, y);
        x.groups += count * x.stride;
        y += count * panel_outputs;
        num_rows -= count;
    }
}

// M rows times `columns` vectors side by side, over groups [0, num_groups) of each; column c's begin at
// groups + c * num_groups. Adds to acc.
template <class Simd, class Unpack, std::size_t M, std::size_t columns>
void many_tile(const Group<Simd> *groups, std::size_t num_groups, Activations x, float *acc) {
    typename Simd::Floats sums[M][columns];
    for (std::size_t m = 0; m < M; ++m)
        for (std::size_t c = 0; c < columns; ++c) sums[m][c] = Simd::load(acc + m * panel_outputs + c * Simd::lanes);
    for (std::size_t g = 0; g < num_groups; ++g) {
        const Group<Simd> *side_by_side[columns];
        for (std::size_t c = 0; c < columns; ++c) side_by_side[c] = groups + c * num_groups + g;
        accumulate<Simd, Unpack, M, columns>(side_by_side, x.groups + g, x.stride, sums);
    }
    for (std::size_t m = 0; m < M; ++m)
        for (std::size_t c = 0; c < columns; ++c) Simd::store(acc + m * panel_outputs + c * Simd::lanes, sums[m][c]);
}

template <class Simd, class Unpack, std::size_t columns, std::size_t M = Simd::panel_rows>
void many_rows(const Group<Simd> *groups, std::size_t num_groups, Activations x, std::size_t num_rows, float *acc) {
    if constexpr (M > 0) {
        for (; num_rows >= M; num_rows -= M, x.groups += M * x.stride, acc += M * panel_outputs)
            many_tile<Simd, Unpack, M, columns>(groups, num_groups, x, acc);
        if (num_rows) many_rows<Simd, Unpack, columns, M - 1>(groups, num_groups, x, num_rows, acc);
    }
}

template <class Simd, class PackedGroup>
inline void write_group(const PackedGroup &from, Group<Simd> &to) {
    for_each_index([&](auto j) __attribute__((always_inline)) { to.weights[j] = from.weight(j); },
                   std::make_index_sequence<8>());
    to.scale = from.scale;
    to.second = from.second;
}

template <class Simd, class Unpack>
void many_panel(const std::uint8_t *const *units, std::size_t num_blocks, std::size_t num_units, Activations x,
                std::size_t num_rows, float *acc, std::uint8_t *scratch) {
    constexpr std::size_t parts = block_rows / Simd::lanes, columns = Simd::panel_columns;
    auto *groups = reinterpret_cast<Group<Simd> *>(scratch);
    const std::size_t num_groups = num_units * Unpack::groups;
    for (std::size_t block = 0; block < num_blocks; ++block)
        for (std::size_t u = 0; u < num_units; ++u) {
            const std::uint8_t *unit = units[block] + u * Unpack::unit_bytes;
            const std::uint8_t *ahead = unit_ahead<Unpack>(units[block], u, num_units, 1);
            Unpack unpack;
            unpack.load(unit);
            for (std::size_t g = 0; g < Unpack::groups; ++g) {
                prefetch_group<Unpack>(ahead, g);
                for (std::size_t part = 0; part < parts; ++part)
                    write_group(unpack.group(g, part),
                                groups[(block * parts + part) * num_groups + u * Unpack::groups + g]);
            }
        }
    std::size_t column = 0;
    for (; column + columns <= num_blocks * parts; column += columns)
        many_rows<Simd, Unpack, columns>(groups + column * num_groups, num_groups, x, num_rows,
                                         acc + column * Simd::lanes);
    for (; column < num_blocks * parts; ++column)
        many_rows<Simd, Unpack, 1>(groups + column * num_groups, num_groups, x, num_rows, acc + column * Simd::lanes);
}

template <class Simd>
void few_of(Format format, const std::uint8_t *const *blocks, std::size_t num_blocks, std::size_t num_units,
            Activations x, std::size_t num_rows, float *y) {
    switch (format) {
        case Format::q4_k: return few_tiles<Simd, UnpackQ4K<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q6_k: return few_tiles<Simd, UnpackQ6K<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q4_0: return few_tiles<Simd, UnpackQ40<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q4_1: return few_tiles<Simd, UnpackQ41<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q5_0: return few_tiles<Simd, UnpackQ50<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q8_0: return few_tiles<Simd, UnpackQ80<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q5_1: return few_tiles<Simd, UnpackQ51<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
        case Format::q5_k: return few_tiles<Simd, UnpackQ5K<Simd>>(blocks, num_blocks, num_units, x, num_rows, y);
    }
}

template <class Simd>
void many_of(Format format, const std::uint8_t *const *units, std::size_t num_blocks, std::size_t num_units,
             Activations x, std::size_t num_rows, float *acc, std::uint8_t *scratch) {
    switch (format) {
        case Format::q4_k:
            return many_panel<Simd, UnpackQ4K<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q6_k:
            return many_panel<Simd, UnpackQ6K<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q4_0:
            return many_panel<Simd, UnpackQ40<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q4_1:
            return many_panel<Simd, UnpackQ41<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q5_0:
            return many_panel<Simd, UnpackQ50<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q8_0:
            return many_panel<Simd, UnpackQ80<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q5_1:
            return many_panel<Simd, UnpackQ51<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
        case Format::q5_k:
            return many_panel<Simd, UnpackQ5K<Simd>>(units, num_blocks, num_units, x, num_rows, acc, scratch);
    }
}
