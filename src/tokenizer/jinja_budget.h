// Limits on what rendering a template may use: templates come with downloaded models.
//
// Everything is counted and nothing is timed, so refusals depend on the template and the conversation, never on the
// machine. Making a text or a list asks before taking memory; iterating over one costs its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace megalith {

// The renderer adds the template's name and line.
struct JinjaFault {
  std::string message;
};

struct JinjaLimits {
  int64_t work = 1'000'000'000;             // units; one takes about a nanosecond on a slow core
  int64_t made_bytes = int64_t{1} << 30;    // all texts and lists ever made
  int64_t held_bytes = int64_t{256} << 20;  // those alive at once
};

struct JinjaUse {
  int64_t work = 0, made_bytes = 0, most_held_bytes = 0;
};

class JinjaBudget {
 public:
  explicit JinjaBudget(const JinjaLimits& limits = {}) : limits_(limits) {}
  JinjaBudget(const JinjaBudget&) = delete;

  // Each throws JinjaFault beyond the limit. `count` is a text's or list's length; `units` is small.
  void work(size_t count, int64_t units = 1) {
    const int64_t more = static_cast<int64_t>(count) * units;
    if (more > limits_.work - use_.work) fail_work();
    use_.work += more;
  }
  void take(size_t bytes);
  void give_back(size_t bytes) { held_bytes_ -= static_cast<int64_t>(bytes); }
  const JinjaUse& use() const { return use_; }

 private:
  [[noreturn]] void fail_work() const;

  const JinjaLimits limits_;
  JinjaUse use_;
  int64_t held_bytes_ = 0;
};

// Bytes held during this object's lifetime. Not counted without a budget: the conversation and a template's constants
// exist before rendering.
class JinjaHeld {
 public:
  explicit JinjaHeld(JinjaBudget* budget = nullptr, size_t bytes = 0) : budget_(budget) { add(bytes); }
  JinjaHeld(JinjaHeld&& other) noexcept { *this = std::move(other); }
  JinjaHeld& operator=(JinjaHeld&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~JinjaHeld() {
    if (budget_ != nullptr) budget_->give_back(bytes_);
  }

  void add(size_t bytes) {
    if (budget_ == nullptr || bytes == 0) return;
    budget_->take(bytes);
    bytes_ += bytes;
  }
  JinjaBudget* budget() const { return budget_; }

 private:
  JinjaBudget* budget_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace megalith
