// Memory that forward passes of one model share: it grows to the largest pass and is not given back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "activations.h"
#include "memory.h"

namespace paceline {

class AlignedBuffer {
   public:
    // Zeros where it grows (padding groups stay so), else what was left there.
    void reserve(std::size_t num_bytes) {
        if (num_bytes <= num_bytes_) return;
        memory_.reset();  // first, so that old and new need not fit side by side
        num_bytes_ = 0;
        memory_ = allocate(num_bytes);
        num_bytes_ = num_bytes;
        std::memset(memory_.get(), 0, num_bytes);
    }
    std::size_t num_bytes() const { return num_bytes_; }
    float *floats() const { return reinterpret_cast<float *>(memory_.get()); }
    ActivationGroup *groups() const { return reinterpret_cast<ActivationGroup *>(memory_.get()); }

   private:
    Memory memory_;
    std::size_t num_bytes_ = 0;
};

// Rows of numbers, or of activation groups, all of one width.
class FloatRows {
   public:
    static std::size_t bytes_for(std::size_t num_rows, std::size_t width) { return num_rows * width * sizeof(float); }
    void reserve(std::size_t num_rows, std::size_t width) {
        width_ = width;
        buffer_.reserve(bytes_for(num_rows, width));
    }
    float *row(std::size_t i) const { return buffer_.floats() + i * width_; }
    std::size_t width() const { return width_; }
    std::size_t num_bytes() const { return buffer_.num_bytes(); }

   private:
    AlignedBuffer buffer_;
    std::size_t width_ = 0;
};

class GroupRows {
   public:
    static std::size_t bytes_for(std::size_t num_rows, std::size_t num_inputs) {
        return num_rows * row_groups(num_inputs) * sizeof(ActivationGroup);
    }
    void reserve(std::size_t num_rows, std::size_t num_inputs) {
        stride_ = row_groups(num_inputs);
        buffer_.reserve(bytes_for(num_rows, num_inputs));
    }
    ActivationGroup *row(std::size_t i) const { return buffer_.groups() + i * stride_; }
    std::size_t stride() const { return stride_; }
    std::size_t num_bytes() const { return buffer_.num_bytes(); }

   private:
    AlignedBuffer buffer_;
    std::size_t stride_ = 0;
};

struct Workspace {
    FloatRows hidden, qkv, mixed, part, gate_up, cos, sin, scratch, reduced;
    GroupRows hidden_groups, mixed_groups, inner_groups;

    std::size_t num_bytes() const {
        std::size_t sum = 0;
        for (const FloatRows *rows : {&hidden, &qkv, &mixed, &part, &gate_up, &cos, &sin, &scratch, &reduced})
            sum += rows->num_bytes();
        for (const GroupRows *rows : {&hidden_groups, &mixed_groups, &inner_groups}) sum += rows->num_bytes();
        return sum;
    }
};

}  // namespace paceline
