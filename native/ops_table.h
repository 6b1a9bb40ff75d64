// The operators as each instruction set has them: tables of functions, filled in by ops_portable.cpp, ops_avx2.cpp and
// ops_avx512.cpp. Callers use ops.h and attention.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

// What the gate goes through before it multiplies the up projection.
enum class Activation { silu, gelu_tanh };

// Which two values of a head are turned together: i and i + head_dim / 2 ("neox"), or 2 i and 2 i + 1 ("norm").
enum class Pairing { halves, interleaved };

// Queries of one kv head against the keys and values of one partition of positions (attention.h).
struct AttendCall {
    int num_queries, head_dim;
    float scale;
    const float *const *queries;         // [num_queries] -> [head_dim]
    const int *first, *end;              // [num_queries]: slots of the partition that the query sees; first < end
    const std::uint16_t *const *keys;    // [blocks up to the greatest end] -> half [head_dim][16]
    const std::uint16_t *const *values;  // the same -> half [16][head_dim]
    // Each query's state so far, which the partition is merged into; sum 0 where there is none yet.
    float *maxima, *sums;  // [num_queries]
    float *const *mixed;   // [num_queries] -> [head_dim]
};

struct OpKernels {
    float (*rms_factor)(const float *x, float eps, std::size_t size);  // 1 / sqrt(mean(x^2) + eps)
    void (*scale)(const float *x, float factor, const float *weight, float *out, std::size_t size);
    void (*gate)(Activation activation, const float *gate, const float *up, std::size_t block_stride, float *out,
                 std::size_t num_blocks);
    void (*add)(float *x, const float *y, std::size_t size);
    void (*rotate)(Pairing pairing, float *head, const float *cos, const float *sin, std::size_t head_dim);
    void (*store_key)(const float *key, std::uint16_t *block, std::size_t slot, std::size_t head_dim);
    void (*store_value)(const float *value, std::uint16_t *row, std::size_t head_dim);
    void (*attend)(const AttendCall &call);
    void (*merge)(float &maximum, float &sum, float *mixed, float other_maximum, float other_sum,
                  const float *other_mixed, int head_dim);
    void (*divide)(float *x, float divisor, std::size_t size);
};

extern const OpKernels ops_portable;
#if defined(__x86_64__)
extern const OpKernels ops_avx2, ops_avx512;
#endif

// The table for the instruction set in use (cpu.h).
const OpKernels &op_kernels();

}  // namespace paceline
