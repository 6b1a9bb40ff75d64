// Exact top-k, top-p and min-p from a partial selection. What is kept is always a beginning of one order, greatest
// score first and equal scores by lowest id; so a cut is said by the last candidate that is kept.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sampling.h"

namespace paceline {
namespace {

using std::size_t;

// Tokens with a lower score can never win, whatever their noise (NOISE_SPAN of src/paceline/sampling/noise.py); they
// are left out before all else.
constexpr double least_score = -41.0;
// Up to here, sorting candidates is cheaper than dividing them into buckets first.
constexpr size_t small = 256;
constexpr size_t num_buckets = 1024;

bool is_before(const Candidate &a, const Candidate &b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

void sort(std::vector<Candidate> &candidates) { std::sort(candidates.begin(), candidates.end(), is_before); }

// The `count` best of the row's tokens, in no order.
template <class Logit>
void best_of_row(const Logit *logits, size_t size, size_t count, const Tempering &tempering, Workspace &workspace,
                 std::vector<Candidate> &out) {
    constexpr size_t step = 1024;
    workspace.ids.resize(std::max(workspace.ids.size(), step));
    out.clear();
    const auto keep_best = [&] {
        if (out.size() <= count) return;
        std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count - 1), out.end(), is_before);
        out.resize(count);
    };
    // Once there are `count`, a later token needs a higher score than the worst of them, hence a greater logit: equal
    // scores lose to lower ids.
    Logit threshold = -std::numeric_limits<Logit>::infinity();
    for (size_t begin = 0; begin < size; begin += step) {
        const size_t end = std::min(size, begin + step);
        const size_t found =
            row_kernels_of<Logit>().collect_greater(logits, begin, end, threshold, workspace.ids.data());
        for (size_t i = 0; i < found; ++i) {
            const std::int32_t id = workspace.ids[i];
            out.push_back({(static_cast<double>(logits[id]) - tempering.peak) / tempering.temperature, id});
        }
        if (out.size() < 2 * count + step) continue;
        keep_best();
        threshold = logits[out[count - 1].id];
    }
    keep_best();
}

struct Nucleus {
    bool is_reached;
    Candidate last;    // of those kept
    double sum = 0.0;  // of shares up to it
};

// Adds up shares in order until they reach `goal`; `sum` is what came before these candidates.
Nucleus walk(std::vector<Candidate> &candidates, const Workspace &workspace, double goal, double &sum) {
    sort(candidates);
    for (const Candidate &candidate : candidates) {
        // Ids stand for places in the workspace here, see `nucleus`.
        sum += workspace.shares[static_cast<size_t>(candidate.id)];
        if (sum >= goal) return {true, candidate, sum};
    }
    return {false, {}};
}

// Where the first `count` tokens of the workspace (ids rising) reach `goal`. Many are divided into buckets of like
// scores first, so that only the bucket in which the goal lies is sorted.
Nucleus nucleus(Workspace &workspace, size_t count, double goal) {
    std::vector<Candidate> &members = workspace.bucket;
    double sum = 0.0, floor = 0.0;
    const auto add_member = [&](size_t i) { members.push_back({workspace.scores[i], static_cast<std::int32_t>(i)}); };
    if (count <= small) {
        members.clear();
        for (size_t i = 0; i < count; ++i) add_member(i);
        return walk(members, workspace, goal, sum);
    }
    for (size_t i = 0; i < count; ++i)
        if (workspace.shares[i] > 0.0) floor = std::min(floor, workspace.scores[i]);
    const double per_unit = floor < -1e-200 ? static_cast<double>(num_buckets - 1) / -floor : 0.0;  // finite
    const auto bucket_of = [&](size_t i) {
        return static_cast<size_t>(std::min(-workspace.scores[i] * per_unit, static_cast<double>(num_buckets - 1)));
    };
    double sums[num_buckets] = {};
    for (size_t i = 0; i < count; ++i)
        if (workspace.shares[i] > 0.0) sums[bucket_of(i)] += workspace.shares[i];
    for (size_t bucket = 0; bucket < num_buckets; ++bucket) {
        if (sum + sums[bucket] < goal) {
            sum += sums[bucket];
            continue;
        }
        members.clear();
        for (size_t i = 0; i < count; ++i)
            if (workspace.shares[i] > 0.0 && bucket_of(i) == bucket) add_member(i);
        const Nucleus found = walk(members, workspace, goal, sum);
        if (found.is_reached) return found;
    }
    return {false, {}};
}

// Moves what is not cut off to `out`: up to `last` in order, and not below `floor`.
void keep(const Workspace &workspace, size_t count, const Nucleus &cut, double floor, std::vector<Candidate> &out) {
    out.clear();
    for (size_t i = 0; i < count; ++i) {
        const double score = workspace.scores[i];
        const bool is_in = !cut.is_reached || !is_before(cut.last, {score, static_cast<std::int32_t>(i)});
        if (is_in && score >= floor) out.push_back({score, workspace.ids[i]});
    }
}

void make_room(Workspace &workspace, size_t size) {
    if (workspace.scores.size() >= size && workspace.ids.size() >= size) return;
    workspace.ids.resize(size);
    workspace.scores.resize(size);
    workspace.shares.resize(size);
}

// Collects the tokens whose score is at least `floor` without exact exponentials of all others; returns how many.
// `total` is the sum of all shares within `rough_error`. Scores and shares have the bits that `collect` gives them.
template <class Logit>
size_t collect_roughly(const Logit *logits, size_t size, const Tempering &tempering, double floor,
                       Workspace &workspace, double &total) {
    const size_t found =
        row_kernels_of<Logit>().rough_collect(logits, size, tempering, floor, workspace.ids.data(), total);
    size_t count = 0;
    for (size_t i = 0; i < found; ++i) {
        const std::int32_t id = workspace.ids[i];
        const double score = (static_cast<double>(logits[id]) - tempering.peak) / tempering.temperature;
        if (score < floor) continue;
        workspace.ids[count] = id;
        workspace.scores[count++] = score;
    }
    sampling_kernels().exp_all(workspace.scores.data(), workspace.shares.data(), count);
    return count;
}

}  // namespace

template <class Logit>
double rough_exp_sum(const Logit *logits, size_t size, const Tempering &tempering, Workspace &workspace) {
    make_room(workspace, size);
    double total;
    row_kernels_of<Logit>().rough_collect(logits, size, tempering, __builtin_inf(), workspace.ids.data(), total);
    return total;
}

template <class Logit>
void top_n(const Logit *logits, size_t size, size_t count, const Tempering &tempering, Workspace &workspace,
           std::vector<Candidate> &out) {
    out.clear();
    if (count == 0) return;
    best_of_row(logits, size, count, tempering, workspace, out);
    sort(out);
}

template <class Logit>
void select(const Logit *logits, size_t size, const Tempering &tempering, const Truncation &truncation,
            Workspace &workspace, std::vector<Candidate> &out) {
    const double min_p_floor = truncation.min_p > 0.0 ? fixed_log(truncation.min_p) : least_score;
    const bool has_top_k = truncation.top_k > 0 && truncation.top_k < size, has_top_p = truncation.top_p < 1.0;
    const RowKernels<Logit> &kernels = row_kernels_of<Logit>();
    const bool is_rough = !has_top_k && is_rough_temperature(tempering.temperature);
    size_t count = 0;
    double total = 0.0;
    const auto collect = [&](double floor) {
        Found found{workspace.ids.data(), workspace.scores.data(), workspace.shares.data(), 0};
        total = kernels.collect(logits, 0, size, tempering, least_score, std::max(floor, least_score), found);
        count = found.count;
    };
    if (has_top_k) {
        best_of_row(logits, size, truncation.top_k, tempering, workspace, out);
        out.erase(std::remove_if(out.begin(), out.end(), [](const Candidate &c) { return c.score < least_score; }),
                  out.end());
        std::sort(out.begin(), out.end(), [](const Candidate &a, const Candidate &b) { return a.id < b.id; });
        count = out.size();
        make_room(workspace, count);
        for (size_t i = 0; i < count; ++i) {
            workspace.ids[i] = out[i].id;
            workspace.scores[i] = out[i].score;
        }
        sampling_kernels().exp_all(workspace.scores.data(), workspace.shares.data(), count);
        total = std::accumulate(workspace.shares.data(), workspace.shares.data() + count, 0.0);
    } else {
        make_room(workspace, size);
        // Tokens each below (1 - p) / n of the total, which is at least 1, cannot sum up to more than 1 - p of it.
        const double top_p_floor =
            has_top_p ? fixed_log((1.0 - truncation.top_p) / static_cast<double>(size)) : min_p_floor;
        if (is_rough) count = collect_roughly(logits, size, tempering, top_p_floor, workspace, total);
        else collect(top_p_floor);
    }
    Nucleus cut{false, {}};
    if (has_top_p && is_rough) {
        // Where the cut is the same for the least and the greatest that the total can be, it is that of the exact one.
        cut = nucleus(workspace, count, truncation.top_p * total * (1.0 - rough_error));
        if (!cut.is_reached || cut.sum < truncation.top_p * total * (1.0 + rough_error)) {
            collect(fixed_log((1.0 - truncation.top_p) / static_cast<double>(size)));
            cut.is_reached = false;
        }
    }
    if (has_top_p && !cut.is_reached) {
        cut = nucleus(workspace, count, truncation.top_p * total);
        if (!cut.is_reached && !has_top_k) {  // by rounding alone; then the rest of the row counts too
            collect(least_score);
            cut = nucleus(workspace, count, truncation.top_p * total);
        }
    }
    keep(workspace, count, cut, min_p_floor, out);
}

template void top_n(const float *, size_t, size_t, const Tempering &, Workspace &, std::vector<Candidate> &);
template void top_n(const double *, size_t, size_t, const Tempering &, Workspace &, std::vector<Candidate> &);
template double rough_exp_sum(const float *, size_t, const Tempering &, Workspace &);
template double rough_exp_sum(const double *, size_t, const Tempering &, Workspace &);
template void select(const float *, size_t, const Tempering &, const Truncation &, Workspace &,
                     std::vector<Candidate> &);
template void select(const double *, size_t, const Tempering &, const Truncation &, Workspace &,
                     std::vector<Candidate> &);

}  // namespace paceline
