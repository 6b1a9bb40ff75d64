// Where the time of forward passes goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace paceline {

enum class Stage { embed, norm, qkv, rotary, attention, output, gate_up, down, head };
inline constexpr std::array<const char *, 9> stage_names = {"embed",  "norm",    "qkv",  "rotary", "attention",
                                                            "output", "gate_up", "down", "head"};

// Adds up seconds by stage: each `end` gives the time since the last call to the stage that it names.
class StageClock {
   public:
    void begin() { last_ = Clock::now(); }
    void end(Stage stage) {
        const Clock::time_point now = Clock::now();
        seconds_[static_cast<std::size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }
    const std::array<double, stage_names.size()> &seconds() const { return seconds_; }
    void reset() { seconds_.fill(0.0); }

   private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point last_{};
    std::array<double, stage_names.size()> seconds_{};
};

}  // namespace paceline
