// Sums since the last console line.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "metrics/step_record.h"

namespace megalith {

struct StepInterval {
  int64_t num_steps = 0, num_skipped = 0, num_nan = 0;
  double elapsed_ms = 0, flops = 0, tokens = 0, loss_tokens = 0, samples = 0;  // per device, except time
  std::vector<std::pair<std::string, double>> losses;

  void add(const StepRecord& record);

  // Over steps not skipped; the plain sum if all were.
  double mean_loss(double sum) const;
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
