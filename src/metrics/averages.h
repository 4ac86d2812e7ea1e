// Means over steps: arithmetic over a window as Primus's iteration line has them, and over the time of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "metrics/step_record.h"

namespace megalith {

// The averages of an iteration line: arithmetic over the lines since the start, emptied once when the first
// `skip_iterations` are over and whenever it holds `reset_interval` values (Primus v0.1, megatron/trainer.py).
class LineAverages {
 public:
  struct Values {
    double elapsed_ms = 0, tflops_per_device = 0, tokens_per_s_per_device = 0;
  };

  LineAverages(int64_t skip_iterations, int64_t reset_interval)
      : skip_iterations_(skip_iterations), reset_interval_(reset_interval) {}

  // Adds a line's values and returns the means with them.
  Values add(int64_t iteration, const Values& values);

 private:
  int64_t skip_iterations_, reset_interval_;
  bool has_skipped_ = false;
  int64_t count_ = 0;
  Values sum_;
};

// What a run did on average. Rates are amount over time, that is, harmonic means over the steps.
struct RunSummary {
  int64_t num_steps = 0;  // that the means are over
  double elapsed_ms = 0;
  double tflops_per_device = 0;
  double causal_tflops_per_device = 0;
  double tokens_per_s_per_device = 0;
  double memory_used_fraction = 0;
};

// Means over all steps but those that are slow for another reason: with at least four, the first two and the last are
// left out (as the ROCm example scripts do); with two or three, the first.
class RunAverages {
 public:
  void add(const StepRecord& record);
  RunSummary summary() const;

 private:
  struct Step {
    double elapsed_ms, flops, causal_flops, tokens, memory_used_fraction;  // per device where it applies
  };
  static void accumulate(Step& sum, const Step& step, double sign);

  // Sums over all steps, and the steps that may have to be taken out again.
  int64_t count_ = 0;
  Step sum_{};
  Step first_[2] = {};
  Step last_{};
};

}  // namespace megalith
