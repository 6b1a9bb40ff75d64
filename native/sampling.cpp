#include "sampling.h"

#include "cpu.h"

namespace paceline {

using std::size_t;

const SamplingKernels &sampling_kernels() {
#if defined(__x86_64__)
    switch (cpu::current()) {
        case cpu::Isa::portable: return sampling_portable;
        case cpu::Isa::avx2:
        case cpu::Isa::avx2_vnni: return sampling_avx2;
        case cpu::Isa::avx512_vnni: return sampling_avx512;
    }
#endif
    return sampling_portable;
}

template <>
const RowKernels<float> &row_kernels_of<float>() {
    return sampling_kernels().of_floats;
}
template <>
const RowKernels<double> &row_kernels_of<double>() {
    return sampling_kernels().of_doubles;
}

template <class Logit>
Peak arg_max(const Logit *logits, size_t size, std::int64_t first_id) {
    const size_t index = row_kernels_of<Logit>().arg_max(logits, size);
    return {static_cast<double>(logits[index]), first_id + static_cast<std::int64_t>(index)};
}

Peak join(const Peak &earlier, const Peak &later) {
    const bool is_later = later.value > earlier.value || (later.value != later.value && earlier.value == earlier.value);
    return is_later ? later : earlier;
}

template <class Logit>
double log_sum_exp(const Logit *logits, size_t size, double peak) {
    return peak + fixed_log(row_kernels_of<Logit>().exp_sum(logits, size, {peak, 1.0}));
}

template <class Logit>
Best gumbel_arg_max(const Logit *logits, size_t begin, size_t end, const Tempering &tempering, const Draw &draw,
                    Best best) {
    if (best.id < 0) best.key = -__builtin_inf();
    return row_kernels_of<Logit>().gumbel_arg_max(logits, begin, end, tempering, draw, best);
}

Best gumbel_arg_max(const std::vector<Candidate> &candidates, const Draw &draw) {
    Best best{-__builtin_inf(), -1};
    for (const Candidate &candidate : candidates) {
        const double key = candidate.score + gumbel_noise(draw, static_cast<std::uint32_t>(candidate.id));
        if (is_better(key, candidate.id, best)) best = {key, candidate.id};
    }
    return best;
}

template <class Logit>
std::int64_t sample(const Logit *logits, size_t size, const Peak &peak, double temperature,
                    const Truncation &truncation, const Draw &draw, Workspace &workspace) {
    if (temperature == 0.0) return peak.id;
    const Tempering tempering{peak.value, temperature};
    if (!truncation.is_none()) {
        select(logits, size, tempering, truncation, workspace, workspace.candidates);
        return gumbel_arg_max(workspace.candidates, draw).id;
    }
    // The peak first: its key is a good one, against which most tokens fail the first, rough comparison.
    const auto at = static_cast<size_t>(peak.id);
    const Best best = gumbel_arg_max(logits, at, at + 1, tempering, draw);
    return gumbel_arg_max(logits, 0, size, tempering, draw, best).id;
}

template Peak arg_max(const float *, size_t, std::int64_t);
template Peak arg_max(const double *, size_t, std::int64_t);
template double log_sum_exp(const float *, size_t, double);
template double log_sum_exp(const double *, size_t, double);
template Best gumbel_arg_max(const float *, size_t, size_t, const Tempering &, const Draw &, Best);
template Best gumbel_arg_max(const double *, size_t, size_t, const Tempering &, const Draw &, Best);
template std::int64_t sample(const float *, size_t, const Peak &, double, const Truncation &, const Draw &,
                             Workspace &);
template std::int64_t sample(const double *, size_t, const Peak &, double, const Truncation &, const Draw &,
                             Workspace &);

}  // namespace paceline
