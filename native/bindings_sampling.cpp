// Sampling passes as Python sees them: one row of logits, float32 or float64. The engine's native step calls the same
// functions on many rows (sampling.h).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace paceline {
namespace {

using std::size_t;
using std::uint32_t;
using std::uint64_t;

template <class Logit>
using Row = nb::ndarray<const Logit, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Result = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// Kept, since its memory is worth more than what is done with it.
thread_local Workspace workspace;

template <class T>
Result<T> to_numpy(std::vector<T> &&values) {
    auto owned = std::make_unique<std::vector<T>>(std::move(values));
    T *data = owned->data();
    const size_t size = owned->size();
    nb::capsule owner(owned.release(), [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return Result<T>(data, {size}, owner);
}

std::pair<Result<std::int64_t>, Result<double>> to_arrays(const std::vector<Candidate> &candidates) {
    std::vector<std::int64_t> ids;
    std::vector<double> scores;
    for (const Candidate &candidate : candidates) {
        ids.push_back(candidate.id);
        scores.push_back(candidate.score);
    }
    return {to_numpy(std::move(ids)), to_numpy(std::move(scores))};
}

template <class Logit>
Peak finite_peak(const Row<Logit> &row) {
    if (row.shape(0) == 0) throw std::invalid_argument("a row of no logits");
    const Peak peak = arg_max(row.data(), row.shape(0));
    if (!std::isfinite(peak.value)) throw std::invalid_argument("the greatest logit is not finite");
    return peak;
}

template <class Logit>
Tempering tempering_of(const Row<Logit> &row, double temperature) {
    if (!(temperature > 0.0)) throw std::invalid_argument("a temperature above 0 is needed");
    return {finite_peak(row).value, temperature};
}

template <class Logit>
size_t arg_max_of_row(Row<Logit> row) {
    if (row.shape(0) == 0) throw std::invalid_argument("a row of no logits");
    nb::gil_scoped_release release;
    return static_cast<size_t>(arg_max(row.data(), row.shape(0)).id);
}

template <class Logit>
double log_sum_exp_of_row(Row<Logit> row) {
    nb::gil_scoped_release release;
    return log_sum_exp(row.data(), row.shape(0), finite_peak(row).value);
}

template <class Logit>
double rough_exp_sum_of_row(Row<Logit> row, double value, double temperature) {
    if (!is_rough_temperature(temperature)) throw std::invalid_argument("a temperature from 1e-30 to 1e30 is needed");
    nb::gil_scoped_release release;
    return rough_exp_sum(row.data(), row.shape(0), {value, temperature}, workspace);
}

template <class Logit>
std::pair<Result<std::int64_t>, Result<double>> top_n_of_row(Row<Logit> row, size_t count) {
    std::vector<Candidate> best;
    {
        nb::gil_scoped_release release;
        top_n(row.data(), row.shape(0), count, {0.0, 1.0}, workspace, best);
    }
    return to_arrays(best);
}

template <class Logit>
std::pair<Result<std::int64_t>, Result<double>> select_of_row(Row<Logit> row, double temperature, size_t top_k,
                                                              double top_p, double min_p) {
    std::vector<Candidate> kept;
    {
        nb::gil_scoped_release release;
        select(row.data(), row.shape(0), tempering_of(row, temperature), {top_k, top_p, min_p}, workspace, kept);
    }
    return to_arrays(kept);
}

template <class Logit>
std::int64_t sample_of_row(Row<Logit> row, double temperature, size_t top_k, double top_p, double min_p, uint64_t seed,
                           uint32_t output_index, uint32_t purpose, uint32_t salt) {
    nb::gil_scoped_release release;
    return sample(row.data(), row.shape(0), finite_peak(row), temperature, {top_k, top_p, min_p},
                  {seed, output_index, purpose, salt}, workspace);
}

std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> philox_words(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                                                uint64_t key) {
    const PhiloxWords out = philox(c0, c1, c2, c3, key);
    return {out.words[0], out.words[1], out.words[2], out.words[3]};
}

Result<double> gumbel(uint64_t seed, uint32_t output_index, Row<std::int64_t> token_ids, uint32_t purpose,
                      uint32_t salt) {
    std::vector<double> noise;
    for (size_t i = 0; i < token_ids.shape(0); ++i)
        noise.push_back(gumbel_noise({seed, output_index, purpose, salt}, static_cast<uint32_t>(token_ids.data()[i])));
    return to_numpy(std::move(noise));
}

template <class Logit>
void bind_rows(nb::module_ &module) {
    module.def("arg_max", &arg_max_of_row<Logit>, "logits"_a.noconvert(), "Index of the greatest, as numpy.argmax.");
    module.def("log_sum_exp", &log_sum_exp_of_row<Logit>, "logits"_a.noconvert(), "log(sum(exp(logits))).");
    module.def("rough_exp_sum", &rough_exp_sum_of_row<Logit>, "logits"_a.noconvert(), "value"_a, "temperature"_a,
               "sum(exp((logits - value) / temperature)) within 2e-5 of itself.");
    module.def("top_n", &top_n_of_row<Logit>, "logits"_a.noconvert(), "count"_a,
               "Ids (int64 [n]) and values (float64 [n]) of the greatest logits, best first, equal ones by lowest id.");
    module.def("select", &select_of_row<Logit>, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a,
               "min_p"_a, "Ids (int64 [n], rising) and scores (float64 [n]) of the tokens that may come.");
    module.def("sample", &sample_of_row<Logit>, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a,
               "min_p"_a, "seed"_a, "output_index"_a, "purpose"_a = 0, "salt"_a = 0,
               "The token with the greatest score plus Gumbel noise of those that may come.");
}

}  // namespace

void bind_sampling(nb::module_ &module) {
    bind_rows<float>(module);
    bind_rows<double>(module);
    module.def("philox", &philox_words, "c0"_a, "c1"_a, "c2"_a, "c3"_a, "key"_a, "Philox-4x32-10: four 32-bit words.");
    module.def("gumbel", &gumbel, "seed"_a, "output_index"_a, "token_ids"_a.noconvert(), "purpose"_a = 0, "salt"_a = 0,
               "Gumbel noise (float64 [n]) of token ids (int64 [n]).");
}

}  // namespace paceline
