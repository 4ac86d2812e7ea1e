// How long a run will take from here: the mean time of its steps, with what passed between them (evaluations,
// checkpoints), times the steps that are left. The first step of a process is slow for other reasons and does not count
// once there is a second.
#pragma once

#include <cstdint>
#include <optional>

#include "metrics/drawn_file.h"
#include "metrics/step_record.h"

namespace megalith {

class TimeLeft {
 public:
  explicit TimeLeft(SecondsClock clock = steady_seconds) : clock_(std::move(clock)) {}

  // After each step. Nothing when none is left.
  std::optional<double> after(const StepRecord& record);

 private:
  SecondsClock clock_;
  double first_at_s_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace megalith
