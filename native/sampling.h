// Choosing tokens from rows of logits without sorting them: the semantics of
// src/paceline/sampling/{processors,selection, coupled}.py, on float32 rows as a model leaves them, or float64 rows
// after penalties.
//
// What equals what. Scores and their order, ties to the lowest id, are the same numbers as there. Sums of exponentials
// are double but added up in another order, so that a nucleus can differ only where its goal lies within about 1e-13
// (relative) of the sum at a token, and a Gumbel arg-max only where the two best keys are within about 1e-14. Both are
// functions of the row, the parameters and the draw alone; the noise and the keys have the same bits on every
// instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling_table.h"

namespace paceline {

// The table for the instruction set in use (cpu.h).
const SamplingKernels &sampling_kernels();

template <class Logit>
const RowKernels<Logit> &row_kernels_of();

// The greatest logit and its index, the lowest of equals; the first NaN, where there is one (so that a check of the
// value finds it out). `first_id` is added to the index: joining the peaks of consecutive parts of a row gives that of
// the row.
struct Peak {
    double value;
    std::int64_t id;
};
template <class Logit>
Peak arg_max(const Logit *logits, std::size_t size, std::int64_t first_id = 0);
Peak join(const Peak &earlier, const Peak &later);

// log(sum(exp(logit))); `peak` is the row's.
template <class Logit>
double log_sum_exp(const Logit *logits, std::size_t size, double peak);

struct Workspace;

// Whether float32 has the temperature's inverse, so that scores in float32 mean something.
constexpr bool is_rough_temperature(double temperature) { return temperature >= 1e-30 && temperature <= 1e30; }

// The sum of exp(score) within `rough_error` of itself, for hints; scores may be above 0.
template <class Logit>
double rough_exp_sum(const Logit *logits, std::size_t size, const Tempering &tempering, Workspace &workspace);

struct Candidate {
    double score;
    std::int32_t id;
};

// Scratch that grows to a row's size once; one for each thread that samples.
struct Workspace {
    std::vector<std::int32_t> ids;
    std::vector<double> scores, shares;
    std::vector<Candidate> candidates, bucket;
};

// The `count` greatest logits above minus infinity, best first, as scores: (logit - peak) / temperature.
template <class Logit>
void top_n(const Logit *logits, std::size_t size, std::size_t count, const Tempering &tempering, Workspace &workspace,
           std::vector<Candidate> &out);

struct Truncation {
    std::size_t top_k = 0;  // 0 keeps all
    double top_p = 1.0;     // in (0, 1]; 1 keeps all
    double min_p = 0.0;     // in [0, 1]; 0 keeps all

    bool is_none() const { return top_k == 0 && top_p >= 1.0 && min_p <= 0.0; }
};

// The tokens that may come after top-k, then top-p of those renormalised, then min-p, with their scores, in rising
// order of ids. `tempering.peak` must be the row's greatest logit, finite.
template <class Logit>
void select(const Logit *logits, std::size_t size, const Tempering &tempering, const Truncation &truncation,
            Workspace &workspace, std::vector<Candidate> &out);

// The token with the greatest score + Gumbel noise, an exact sample; ties go to the lowest id. Over a part of a row,
// begin .. end - 1, joined with `best` (id -1: nothing yet), or over candidates.
template <class Logit>
Best gumbel_arg_max(const Logit *logits, std::size_t begin, std::size_t end, const Tempering &tempering,
                    const Draw &draw, Best best = {0.0, -1});
Best gumbel_arg_max(const std::vector<Candidate> &candidates, const Draw &draw);

// The token of one row under these parameters: the peak at temperature 0 or where it alone is left, else the Gumbel
// arg-max.
template <class Logit>
std::int64_t sample(const Logit *logits, std::size_t size, const Peak &peak, double temperature,
                    const Truncation &truncation, const Draw &draw, Workspace &workspace);

}  // namespace paceline
