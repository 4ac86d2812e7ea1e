// Sums since the last console line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/step_record.h"

namespace megalith {

struct StepInterval {
  int64_t num_steps = 0, num_skipped = 0, num_nan = 0;
  double elapsed_ms = 0, flops = 0, tokens = 0, loss_tokens = 0, samples = 0;  // per device, except time
  struct Loss {
    std::string name;
    double sum = 0, last = 0;
    int64_t num_steps = 0;  // not skipped, that have it

    // Over these steps; 0 if there are none.
    double mean() const { return sum / std::max(1.0, static_cast<double>(num_steps)); }
  };
  std::vector<Loss> losses;

  void add(const StepRecord& record);

  double tokens_per_s_per_device() const { return per_s(tokens); }
  double loss_tokens_per_s_per_device() const { return per_s(loss_tokens); }
  double images_per_s_per_device() const { return per_s(samples); }
  double flops_per_s_per_device() const { return per_s(flops); }

 private:
  double per_s(double amount) const { return elapsed_ms > 0 ? amount * 1e3 / elapsed_ms : 0; }
};

// True if a line shows the loss: any reward; as in Megatron, others if > 0 or NaN (<= 0: unused, skipped steps).
bool is_shown(const std::string& loss, double value);

// True every log_interval iterations and after the last.
bool is_line_due(const StepRecord& record, int64_t log_interval);

}  // namespace megalith
