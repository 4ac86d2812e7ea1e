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
    auto loss = std::ranges::find(losses, name, &Loss::name);
    if (loss == losses.end()) loss = losses.insert(loss, {.name = name});
    loss->last = value;
    if (record.is_skipped) continue;
    loss->sum += value;
    ++loss->num_steps;
  }
}

bool is_shown(const std::string& loss, double value) {
  return !(value <= 0) || loss.find("reward") != std::string::npos;
}

bool is_line_due(const StepRecord& record, int64_t log_interval) {
  return record.iteration % log_interval == 0 || record.iteration == record.train_iters;
}

}  // namespace megalith
