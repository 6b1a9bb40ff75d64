// Passes over rows of logits, once for all instruction sets; included by the sampling_*.cpp files after their simd_*.h.
// A row has no NaN and no plus infinity, which `arg_max` finds out; minus infinity is a token that cannot come.

namespace paceline {
namespace {

using std::int32_t;
using std::int64_t;
using std::size_t;
using std::uint32_t;

constexpr double lowest = -__builtin_inf();

PACELINE_INLINE bool any_nan(const float *p) { return lanes_nan(load(p)) != 0; }
PACELINE_INLINE bool any_nan(const double *p) {
    return (lanes_not_less(load_doubles(p), load_doubles(p)) &
            lanes_not_less(load_doubles(p + 8), load_doubles(p + 8))) != 0xffu;
}
// The first of 16 that is not below `value`, or 16.
PACELINE_INLINE int first_not_less(const float *p, float value) {
    const unsigned bits = ~lanes_greater(all(value), load(p)) & 0xffffu;
    return bits ? __builtin_ctz(bits) : 16;
}
PACELINE_INLINE int first_not_less(const double *p, double value) {
    const Doubles bound = all_doubles(value);
    const unsigned bits = lanes_not_less(load_doubles(p), bound) | lanes_not_less(load_doubles(p + 8), bound) << 8;
    return bits ? __builtin_ctz(bits) : 16;
}
PACELINE_INLINE float greatest_of(const float *logits, size_t size) {
    Floats peaks[4] = {load(logits), load(logits), load(logits), load(logits)};
    for (size_t i = 0; i < size; i += 16) peaks[i / 16 % 4] = maximum(load(logits + i), peaks[i / 16 % 4]);
    return greatest(maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3])));
}
PACELINE_INLINE double greatest_of(const double *logits, size_t size) {
    Doubles peak = load_doubles(logits);
    for (size_t i = 0; i < size; i += 8) peak = maximum(load_doubles(logits + i), peak);
    double lanes[8], result = lowest;
    store_doubles(lanes, peak);
    for (const double lane : lanes) result = lane > result ? lane : result;
    return result;
}

// Two passes, for the value and then for its first place: both run as fast as memory, and ties need no care.
template <class Logit>
size_t arg_max(const Logit *logits, size_t size) {
    const size_t whole = size & ~size_t{15};
    bool has_nan = false;
    for (size_t i = 0; i < whole; i += 16) has_nan |= any_nan(logits + i);
    for (size_t i = whole; i < size; ++i) has_nan |= logits[i] != logits[i];
    if (has_nan)
        for (size_t i = 0;; ++i)
            if (logits[i] != logits[i]) return i;
    Logit peak = whole ? greatest_of(logits, whole) : logits[0];
    for (size_t i = whole; i < size; ++i) peak = logits[i] > peak ? logits[i] : peak;
    for (size_t i = 0; i < whole; i += 16) {
        const int found = first_not_less(logits + i, peak);
        if (found < 16) return i + static_cast<size_t>(found);
    }
    size_t i = whole;
    while (logits[i] < peak) ++i;
    return i;
}

// Calls work(pointer to 8 logits, index of the first, how many of them count), the last ones padded by minus infinity.
template <class Logit, class Work>
PACELINE_INLINE void in_eights(const Logit *logits, size_t begin, size_t end, Work work) {
    size_t i = begin;
    for (; i + 8 <= end; i += 8) work(logits + i, i, 8);
    if (i == end) return;
    Logit padded[8];
    for (size_t j = 0; j < 8; ++j) padded[j] = i + j < end ? logits[i + j] : static_cast<Logit>(lowest);
    work(padded, i, static_cast<int>(end - i));
}

template <class Logit>
double collect(const Logit *logits, size_t begin, size_t end, const Tempering &tempering, double least, double floor,
               Found &found) {
    const Doubles peak = all_doubles(tempering.peak), temperature = all_doubles(tempering.temperature);
    const Doubles bound = all_doubles(floor), least_score = all_doubles(least);
    Doubles total = all_doubles(0.0);
    in_eights(logits, begin, end, [&](const Logit *p, size_t index, int count) {
        const Doubles scores = (load_doubles(p) - peak) / temperature;
        const Doubles shares = zero_where_less(exp(scores), scores, least_score);
        total = total + shares;
        unsigned bits = lanes_not_less(scores, bound) & ((1u << count) - 1u);
        if (!bits) return;
        double score[8], share[8];
        store_doubles(score, scores);
        store_doubles(share, shares);
        for (; bits; bits &= bits - 1, ++found.count) {
            const int lane = __builtin_ctz(bits);
            found.ids[found.count] = static_cast<int32_t>(index) + lane;
            found.scores[found.count] = score[lane];
            found.shares[found.count] = share[lane];
        }
    });
    return sum(total);
}

template <class Logit>
double exp_sum(const Logit *logits, size_t size, const Tempering &tempering) {
    const Doubles peak = all_doubles(tempering.peak), temperature = all_doubles(tempering.temperature);
    Doubles total = all_doubles(0.0);
    in_eights(logits, 0, size,
              [&](const Logit *p, size_t, int) { total = total + exp((load_doubles(p) - peak) / temperature); });
    return sum(total);
}

PACELINE_INLINE Floats rough_distances(const float *p, const Tempering &tempering) {
    return load(p) - all(static_cast<float>(tempering.peak));
}
PACELINE_INLINE Floats rough_distances(const double *p, const Tempering &tempering) {
    float distances[16];
    for (int i = 0; i < 16; ++i) distances[i] = static_cast<float>(p[i] - tempering.peak);
    return load(distances);
}

template <class Logit>
size_t rough_collect(const Logit *logits, size_t size, const Tempering &tempering, double floor, int32_t *ids,
                     double &total) {
    const Floats inverse = all(static_cast<float>(1.0 / tempering.temperature));
    const Floats bound = all(static_cast<float>(floor) - 1e-4f);
    size_t count = 0;
    total = 0.0;
    const auto sixteen = [&](const Logit *p, size_t index, unsigned counted, Floats &sums) {
        const Floats scores = rough_distances(p, tempering) * inverse;
        sums = sums + exp(scores);
        for (unsigned bits = lanes_greater(scores, bound) & counted; bits; bits &= bits - 1)
            ids[count++] = static_cast<int32_t>(index) + __builtin_ctz(bits);
    };
    const size_t whole = size & ~size_t{15};
    for (size_t begin = 0; begin < whole; begin += 512) {
        const size_t end = begin + 512 < whole ? begin + 512 : whole;
        Floats sums = all(0.0f);
        for (size_t i = begin; i < end; i += 16) sixteen(logits + i, i, 0xffffu, sums);
        total += static_cast<double>(sum(sums));
    }
    if (whole < size) {
        Logit padded[16];
        for (size_t i = 0; i < 16; ++i) padded[i] = whole + i < size ? logits[whole + i] : static_cast<Logit>(lowest);
        Floats sums = all(0.0f);
        sixteen(padded, whole, (1u << (size - whole)) - 1u, sums);
        total += static_cast<double>(sum(sums));
    }
    return count;
}

PACELINE_INLINE unsigned sixteen_greater(const float *p, float threshold) {
    return lanes_greater(load(p), all(threshold));
}
PACELINE_INLINE unsigned sixteen_greater(const double *p, double threshold) {
    const Doubles bound = all_doubles(threshold);
    return ~(lanes_not_less(bound, load_doubles(p)) | lanes_not_less(bound, load_doubles(p + 8)) << 8) & 0xffffu;
}

template <class Logit>
size_t collect_greater(const Logit *logits, size_t begin, size_t end, Logit threshold, int32_t *ids) {
    size_t i = begin, count = 0;
    for (; i + 16 <= end; i += 16)
        for (unsigned bits = sixteen_greater(logits + i, threshold); bits; bits &= bits - 1)
            ids[count++] = static_cast<int32_t>(i) + __builtin_ctz(bits);
    for (; i < end; ++i)
        if (logits[i] > threshold) ids[count++] = static_cast<int32_t>(i);
    return count;
}

// What of Philox is the same for all tokens: the state after the first round, but for the token, and the rounds' keys.
struct PhiloxRounds {
    explicit PhiloxRounds(const Draw &draw) {
        auto k0 = static_cast<uint32_t>(draw.seed), k1 = static_cast<uint32_t>(draw.seed >> 32);
        const std::uint64_t product_0 = std::uint64_t{draw.output_index} * multiplier_0;
        const std::uint64_t product_1 = std::uint64_t{draw.purpose} * multiplier_1;
        c0 = all_words((product_1 >> 32) ^ k0);
        c1 = all_words(product_1);
        c2 = all_words((product_0 >> 32) ^ draw.salt ^ k1);
        c3 = all_words(product_0);
        for (int round = 1; round < 10; ++round) {
            keys_0[round] = all_words(k0 += 0x9E3779B9u);
            keys_1[round] = all_words(k1 += 0xBB67AE85u);
        }
    }

    static constexpr uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
    Words c0, c1, c2, c3, keys_0[10], keys_1[10];
};

// The first word of Philox for each token, in the low half of a lane.
PACELINE_INLINE Words philox_word(Words tokens, const PhiloxRounds &rounds) {
    const Words m0 = all_words(PhiloxRounds::multiplier_0), m1 = all_words(PhiloxRounds::multiplier_1);
    Words c0 = exclusive_or(tokens, rounds.c0, all_words(0)), c1 = rounds.c1, c2 = rounds.c2, c3 = rounds.c3;
    for (int round = 1; round < 10; ++round) {
        const Words product_0 = times_low(c0, m0), product_1 = times_low(c2, m1);
        c0 = exclusive_or(high_half(product_1), c1, rounds.keys_0[round]);
        c1 = product_1;
        c2 = exclusive_or(high_half(product_0), c3, rounds.keys_1[round]);
        c3 = product_0;
    }
    return c0;
}

template <class Logit>
PACELINE_INLINE void try_token(const Logit *logits, size_t i, const Tempering &tempering, const Draw &draw,
                               Best &best) {
    const double score = (static_cast<double>(logits[i]) - tempering.peak) / tempering.temperature;
    const double key = score + gumbel_noise(draw, static_cast<uint32_t>(i));
    if (score > lowest && is_better(key, static_cast<int64_t>(i), best)) best = {key, static_cast<int64_t>(i)};
}

// A token can only win where -log(u) <= exp(score - best key), and -log(u) >= 1 - u. So 16 tokens at a time are held
// against that in float32 with a margin of a hundredth, far above its rounding, from the first 31 bits of u alone; the
// few that are left are worked out in double. What is compared in the end is the same for every instruction set.
template <class Logit>
Best gumbel_arg_max(const Logit *logits, size_t begin, size_t end, const Tempering &tempering, const Draw &draw,
                    Best best) {
    const Floats inverse = all(static_cast<float>(1.0 / tempering.temperature)), margin = all(1.01f * 2147483648.0f);
    const PhiloxRounds rounds(draw);
    size_t i = begin;
    for (; i + 16 <= end; i += 16) {
        const Words low = philox_word(counting_from(i), rounds), high = philox_word(counting_from(i + 8), rounds);
        const Floats rough = rough_distances(logits + i, tempering) * inverse - all(static_cast<float>(best.key));
        unsigned bits = ~lanes_greater(complement_of_low(low, high), exp(rough) * margin) & 0xffffu;
        for (; bits; bits &= bits - 1)
            try_token(logits, i + static_cast<size_t>(__builtin_ctz(bits)), tempering, draw, best);
    }
    for (; i < end; ++i) try_token(logits, i, tempering, draw, best);
    return best;
}

void exp_all(const double *scores, double *shares, size_t size) {
    in_eights(scores, 0, size, [&](const double *p, size_t index, int count) {
        double lanes[8];
        store_doubles(lanes, exp(load_doubles(p)));
        for (int i = 0; i < count; ++i) shares[index + static_cast<size_t>(i)] = lanes[i];
    });
}

template <class Logit>
constexpr RowKernels<Logit> row_kernels() {
    return {arg_max<Logit>,       collect<Logit>,         exp_sum<Logit>,
            rough_collect<Logit>, collect_greater<Logit>, gumbel_arg_max<Logit>};
}

}  // namespace
}  // namespace paceline
