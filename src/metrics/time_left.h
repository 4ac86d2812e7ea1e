// A run's remaining time: mean time per sample, with evaluations and checkpoints, times remaining samples, as the
// global batch may grow. If the samples are unknown, steps count instead. The slow first step counts only until there
// is a second.
#pragma once

#include <cstdint>
#include <optional>

#include "metrics/drawn_file.h"
#include "metrics/step_record.h"

namespace megalith {

class TimeLeft {
 public:
  // train_samples  of the whole run; 0: unknown
  explicit TimeLeft(int64_t train_samples = 0, SecondsClock clock = steady_seconds)
      : train_samples_(train_samples), clock_(std::move(clock)) {}

  // Call after each step. Null after the last.
  std::optional<double> after(const StepRecord& record);

 private:
  int64_t train_samples_;
  SecondsClock clock_;
  double first_at_s_ = 0;
  int64_t first_iteration_ = 0, first_samples_ = 0;  // done by the end of the first step
  bool has_first_ = false;
};

}  // namespace megalith
