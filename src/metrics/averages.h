// Means over steps: Primus's windowed ones for the iteration line, and a whole run's.
#pragma once

#include <cstdint>
#include <vector>

#include "metrics/step_record.h"

namespace megalith {

// Arithmetic over all lines since the start, reset once after `skip_iterations` and whenever `reset_interval` values
// are held (Primus v0.1, megatron/trainer.py).
class LineAverages {
 public:
  struct Values {
    double elapsed_ms = 0, tflops_per_device = 0, tokens_per_s_per_device = 0;
  };

  LineAverages(int64_t skip_iterations, int64_t reset_interval)
      : skip_iterations_(skip_iterations), reset_interval_(reset_interval) {}

  Values add(int64_t iteration, const Values& values);

 private:
  int64_t skip_iterations_, reset_interval_;
  bool has_skipped_ = false;
  int64_t count_ = 0;
  Values sum_;
};

// Rates are amount over time: harmonic means over steps.
struct RunSummary {
  int64_t num_steps = 0;  // in the means
  double elapsed_ms = 0;
  double tflops_per_device = 0;
  double causal_tflops_per_device = 0;
  double tokens_per_s_per_device = 0;
  double memory_used_fraction = 0;
};

// Leaves out slow steps: of four or more the first two and the last (as in the ROCm example scripts); of two or three
// the first.
class RunAverages {
 public:
  void add(const StepRecord& record);
  RunSummary summary() const;

 private:
  struct Step {
    double elapsed_ms, flops, causal_flops, tokens, memory_used_fraction;  // per device where applicable
  };
  static void accumulate(Step& sum, const Step& step, double sign);

  // Sums over all steps, and those perhaps to be subtracted.
  int64_t count_ = 0;
  Step sum_{};
  Step first_[2] = {};
  Step last_{};
};

}  // namespace megalith
