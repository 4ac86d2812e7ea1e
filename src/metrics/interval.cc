#include "metrics/interval.h"

#include <algorithm>

namespace megalith {

void StepInterval::add(const StepRecord& record) {
  ++num_steps;
  num_skipped += record.is_skipped;
  num_nan += record.is_nan;
  elapsed_ms += record.elapsed_ms;
  flops += record.flops / record.num_devices;
  tokens += static_cast<double>(record.tokens) / record.num_devices;
  samples += static_cast<double>(record.global_batch_size) / record.num_devices;
  loss_tokens += static_cast<double>(record.loss_tokens.value_or(0)) / record.num_devices;
  for (const auto& [name, value] : record.losses) {
    auto sum = std::find_if(losses.begin(), losses.end(), [&](const auto& entry) { return entry.first == name; });
    if (sum == losses.end()) sum = losses.insert(sum, {name, 0.0});
    if (!record.is_skipped) sum->second += value;
  }
}

double StepInterval::mean_loss(double sum) const {
  return sum / std::max(1.0, static_cast<double>(num_steps - num_skipped));
}

bool is_shown(const std::string& loss, double value) {
  return !(value <= 0) || loss.find("reward") != std::string::npos;
}

bool is_line_due(const StepRecord& record, int64_t log_interval) {
  return record.iteration % log_interval == 0 || record.iteration == record.train_iters;
}

}  // namespace megalith
