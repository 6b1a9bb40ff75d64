// Passes over a row of logits as each instruction set has them; filled in by sampling_portable.cpp, sampling_avx2.cpp
// and sampling_avx512.cpp. Callers use sampling.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "philox.h"

namespace paceline {

// A logit's score is (logit - peak) / temperature, in double: 0 for the greatest.
struct Tempering {
    double peak, temperature;
};

// Of float32 scores from 0 to -41, exponentials, and sums of 32 of them; relative, with room.
constexpr double rough_error = 2e-5;

struct Best {
    double key;
    std::int64_t id;  // -1 where there is none yet
};

// Candidates found, in the order of their ids; the arrays have room for every token of the range.
struct Found {
    std::int32_t *ids;
    double *scores, *shares;  // shares: exp(score)
    std::size_t count;
};

template <class Logit>
struct RowKernels {
    // Index of the greatest, the first of equals; of the first NaN, where there is one. `size` at least 1.
    std::size_t (*arg_max)(const Logit *logits, std::size_t size);
    // Over begin .. end - 1: the sum of exp(score) of tokens whose score is at least `least`; those whose score is at
    // least `floor`, itself no lower, are appended to `found`.
    double (*collect)(const Logit *logits, std::size_t begin, std::size_t end, const Tempering &tempering, double least,
                      double floor, Found &found);
    double (*exp_sum)(const Logit *logits, std::size_t size, const Tempering &tempering);
    // The sum of exp(score) within `rough_error` of itself, from float32 exponentials; scores may be above 0. Ids of
    // all tokens whose score is at least `floor` go to `ids`, which has room for the row, and perhaps some whose score
    // is below it by less than 1e-4; returns how many.
    std::size_t (*rough_collect)(const Logit *logits, std::size_t size, const Tempering &tempering, double floor,
                                 std::int32_t *ids, double &total);
    // Ids from begin on whose logit is above `threshold`; returns how many.
    std::size_t (*collect_greater)(const Logit *logits, std::size_t begin, std::size_t end, Logit threshold,
                                   std::int32_t *ids);
    // The best of `best` and score + Gumbel noise over begin .. end - 1.
    Best (*gumbel_arg_max)(const Logit *logits, std::size_t begin, std::size_t end, const Tempering &tempering,
                           const Draw &draw, Best best);
};

struct SamplingKernels {
    RowKernels<float> of_floats;
    RowKernels<double> of_doubles;
    void (*exp_all)(const double *scores, double *shares, std::size_t size);
};

extern const SamplingKernels sampling_portable;
#if defined(__x86_64__)
extern const SamplingKernels sampling_avx2, sampling_avx512;
#endif

// Greater key wins; of equal keys, the lower id. Shared by the passes here and by what joins their results.
static inline bool is_better(double key, std::int64_t id, const Best &best) {
    return key > best.key || (key == best.key && id < best.id) || best.id < 0;
}

}  // namespace paceline
