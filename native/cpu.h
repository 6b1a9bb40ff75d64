// Which instruction sets this machine has, and which one the kernels use.
#pragma once

#include <string>
#include <vector>

namespace paceline::cpu {

// In rising order of preference.
//   portable     plain C++, any machine
//   avx2         AVX2, FMA, F16C
//   avx2_vnni    the same and AVX-VNNI (vpdpbusd on 256 bits)
//   avx512_vnni  AVX-512 F, BW, DQ, VL and VNNI
enum class Isa { portable, avx2, avx2_vnni, avx512_vnni };
inline constexpr int num_isas = 4;

const char *name(Isa isa);

// All that this machine and its operating system can run, the portable one first.
std::vector<Isa> available();

// The best of `available()`.
Isa detect();

// What kernels use: `detect()` until `set` says otherwise.
Isa current();

// Throws std::invalid_argument that lists what the machine has, where it lacks `isa_name`. Not to be called while
// kernels run.
void set(const std::string &isa_name);

}  // namespace paceline::cpu
