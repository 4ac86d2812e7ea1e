// A run's remaining time: mean time per step, with evaluations and checkpoints, times remaining steps. The slow first
// step counts only until there is a second.
#pragma once

#include <cstdint>
#include <optional>

#include "metrics/drawn_file.h"
#include "metrics/step_record.h"

namespace megalith {

class TimeLeft {
 public:
  explicit TimeLeft(SecondsClock clock = steady_seconds) : clock_(std::move(clock)) {}

  // Call after each step. Null after the last.
  std::optional<double> after(const StepRecord& record);

 private:
  SecondsClock clock_;
  double first_at_s_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace megalith
