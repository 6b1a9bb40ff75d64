// Norm, gate, rotary and KV store, once for all instruction sets; included by the ops_*.cpp files after their simd_*.h.

namespace paceline {
namespace {

using std::size_t;
using std::uint16_t;

// Four running sums of sixteen lanes hide the latency of the additions; the order depends on the size alone.
float rms_factor(const float *x, float eps, size_t size) {
    Floats sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
    const size_t whole = size & ~size_t{15};
    const int rest = static_cast<int>(size - whole);
    for (size_t i = 0; i < whole; i += 16) {
        const Floats v = load(x + i);
        Floats &sum_of_four = sums[i / 16 % 4];
        sum_of_four = fma(v, v, sum_of_four);
    }
    if (rest) {
        const Floats v = load_first(x + whole, rest);
        sums[0] = fma(v, v, sums[0]);
    }
    const float mean_square = sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(size);
    return 1.0f / __builtin_sqrtf(mean_square + eps);
}

// x * factor * weight.
void scale(const float *x, float factor, const float *weight, float *out, size_t size) {
    for (size_t i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// Both are g / (1 + exp(-t)): t = g for silu; gelu's (1 + tanh z) / 2 is the logistic function of 2 z.
PACELINE_INLINE Floats silu(Floats g) { return g / (all(1.0f) + exp(all(0.0f) - g)); }

PACELINE_INLINE Floats gelu_tanh(Floats g) {
    const Floats two_z = all(1.5957691216057308f) * g * fma(all(0.044715f) * g, g, all(1.0f));
    return g / (all(1.0f) + exp(all(0.0f) - two_z));
}

void gate(Activation activation, const float *gate, const float *up, size_t block_stride, float *out,
          size_t num_blocks) {
    if (activation == Activation::silu) {
        for (size_t i = 0; i < num_blocks; ++i)
            store(out + 16 * i, silu(load(gate + block_stride * i)) * load(up + block_stride * i));
    } else {
        for (size_t i = 0; i < num_blocks; ++i)
            store(out + 16 * i, gelu_tanh(load(gate + block_stride * i)) * load(up + block_stride * i));
    }
}

void add(float *__restrict x, const float *__restrict y, size_t size) {
    for (size_t i = 0; i < size; ++i) x[i] += y[i];
}

void divide(float *x, float divisor, size_t size) {
    for (size_t i = 0; i < size; ++i) x[i] /= divisor;
}

// Plain loops without sums: the compiler's own vectors give the same numbers.
void rotate(Pairing pairing, float *__restrict head, const float *__restrict cos, const float *__restrict sin,
            size_t head_dim) {
    const size_t half = head_dim / 2;
    if (pairing == Pairing::halves) {
        for (size_t i = 0; i < half; ++i) {
            const float first = head[i], second = head[i + half];
            head[i] = first * cos[i] - second * sin[i];
            head[i + half] = second * cos[i] + first * sin[i];
        }
    } else {
        for (size_t i = 0; i < half; ++i) {
            const float first = head[2 * i], second = head[2 * i + 1];
            head[2 * i] = first * cos[i] - second * sin[i];
            head[2 * i + 1] = second * cos[i] + first * sin[i];
        }
    }
}

// Eight to sixteen floats as halves.
PACELINE_INLINE int to_halves(const float *p, size_t left, uint16_t *halves) {
    const int n = left < 16 ? static_cast<int>(left) : 16;
    store_half(halves, n == 16 ? load(p) : load_first(p, n));
    return n;
}

void store_key(const float *key, uint16_t *block, size_t slot, size_t head_dim) {
    uint16_t halves[16];
    for (size_t d = 0; d < head_dim; d += 16) {
        const int n = to_halves(key + d, head_dim - d, halves);
        for (int i = 0; i < n; ++i) block[(d + static_cast<size_t>(i)) * 16 + slot] = halves[i];
    }
}

void store_value(const float *value, uint16_t *row, size_t head_dim) {
    uint16_t halves[16];
    for (size_t d = 0; d < head_dim; d += 16) {
        const int n = to_halves(value + d, head_dim - d, halves);
        __builtin_memcpy(row + d, halves, sizeof(uint16_t) * static_cast<size_t>(n));
    }
}

}  // namespace
}  // namespace paceline
