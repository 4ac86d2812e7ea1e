// The bottom line of a terminal:
//
//   step 120 of 1000 (12 %), loss 4.213, 12.4 k tok/s/device, ETA 3 h 12 m
#pragma once

#include <string>

#include "metrics/step_record.h"
#include "metrics/time_left.h"

namespace megalith {

class Logger;

// Add it after sinks that print, which remove the line. Does nothing without a terminal.
class TrainingProgress : public MetricsSink {
 public:
  // train_samples  of the whole run; 0: unknown
  explicit TrainingProgress(Logger& log, int64_t train_samples = 0) : log_(log), time_left_(train_samples) {}

  void on_step(const StepRecord& record) override;
  void on_end() override;

  // "" before the first step.
  const std::string& line() const { return line_; }

 private:
  Logger& log_;
  TimeLeft time_left_;
  std::string line_;
};

}  // namespace megalith
