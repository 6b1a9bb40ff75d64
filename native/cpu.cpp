#include "cpu.h"

#include <atomic>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace paceline::cpu {
namespace {

constexpr const char *names[num_isas] = {"portable", "avx2", "avx2_vnni", "avx512_vnni"};

#if defined(__x86_64__)

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves zeros where there is no such leaf
    return r;
}

bool has_bit(unsigned word, unsigned bit) { return word >> bit & 1u; }

// Which register states the operating system saves; the compiler's _xgetbv would need a compile flag of its own.
unsigned saved_states() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

Isa best() {
    const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
    if (!has_bit(one.ecx, 27)) return Isa::portable;  // OSXSAVE: xgetbv exists
    const unsigned states = saved_states();
    const bool fma = has_bit(one.ecx, 12), f16c = has_bit(one.ecx, 29), avx2 = has_bit(seven.ebx, 5);
    if (!fma || !f16c || !avx2 || (states & 0x6u) != 0x6u) return Isa::portable;
    const bool f = has_bit(seven.ebx, 16), dq = has_bit(seven.ebx, 17), bw = has_bit(seven.ebx, 30),
               vl = has_bit(seven.ebx, 31), vnni = has_bit(seven.ecx, 11);
    if (f && dq && bw && vl && vnni && (states & 0xe6u) == 0xe6u) return Isa::avx512_vnni;
    return has_bit(seven_one.eax, 4) ? Isa::avx2_vnni : Isa::avx2;
}

bool has_avx_vnni() { return has_bit(cpuid(7, 1).eax, 4); }

#else

Isa best() { return Isa::portable; }
bool has_avx_vnni() { return false; }

#endif

std::atomic<Isa> &chosen() {
    static std::atomic<Isa> isa{detect()};
    return isa;
}

}  // namespace

const char *name(Isa isa) { return names[static_cast<int>(isa)]; }

Isa detect() {
    static const Isa isa = best();
    return isa;
}

std::vector<Isa> available() {
    std::vector<Isa> isas{Isa::portable};
    if (detect() >= Isa::avx2) isas.push_back(Isa::avx2);
    // Processors exist that have the 512-bit VNNI but not the 256-bit encoding of AVX-VNNI: Zen 4 is one.
    if (detect() >= Isa::avx2 && has_avx_vnni()) isas.push_back(Isa::avx2_vnni);
    if (detect() >= Isa::avx512_vnni) isas.push_back(Isa::avx512_vnni);
    return isas;
}

Isa current() { return chosen().load(std::memory_order_relaxed); }

void set(const std::string &isa_name) {
    std::string known;
    for (const Isa isa : available()) {
        if (isa_name == name(isa)) {
            chosen().store(isa, std::memory_order_relaxed);
            return;
        }
        known += (known.empty() ? "" : ", ") + std::string(name(isa));
    }
    throw std::invalid_argument("instruction set " + isa_name + " is not available; this machine has " + known);
}

}  // namespace paceline::cpu
