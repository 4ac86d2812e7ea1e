// What a template may use up while it is rendered: it comes with a downloaded model.
//
// All is counted and nothing is timed, so what is refused depends on the template and the conversation, never on the
// machine. Whoever makes a text or a list asks before the memory is taken; whoever goes over one pays for its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace megalith {

// What is wrong; the renderer adds the template's name and line.
struct JinjaFault {
  std::string message;
};

struct JinjaLimits {
  int64_t work = 1'000'000'000;             // units; one takes about a nanosecond on a slow core
  int64_t made_bytes = int64_t{1} << 30;    // of all texts and lists
  int64_t held_bytes = int64_t{256} << 20;  // of those that are there at once
};

struct JinjaUse {
  int64_t work = 0, made_bytes = 0, most_held_bytes = 0;
};

class JinjaBudget {
 public:
  explicit JinjaBudget(const JinjaLimits& limits = {}) : limits_(limits) {}
  JinjaBudget(const JinjaBudget&) = delete;

  // Each throws JinjaFault when it is beyond the limit. The count is that of a text or a list, and the units are few.
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

// Bytes that are held as long as this lives. Without a budget nothing is counted: the conversation, and the constants
// of a template, are there before it is rendered.
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
