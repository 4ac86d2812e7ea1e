#include "metrics/averages.h"

namespace megalith {

LineAverages::Values LineAverages::add(int64_t iteration, const Values& values) {
  if ((!has_skipped_ && iteration > skip_iterations_) || count_ >= reset_interval_) {
    has_skipped_ = has_skipped_ || iteration > skip_iterations_;
    count_ = 0;
    sum_ = {};
  }
  ++count_;
  sum_.elapsed_ms += values.elapsed_ms;
  sum_.tflops_per_device += values.tflops_per_device;
  sum_.tokens_per_s_per_device += values.tokens_per_s_per_device;
  const double n = static_cast<double>(count_);
  return {sum_.elapsed_ms / n, sum_.tflops_per_device / n, sum_.tokens_per_s_per_device / n};
}

void RunAverages::accumulate(Step& sum, const Step& step, double sign) {
  sum.elapsed_ms += sign * step.elapsed_ms;
  sum.flops += sign * step.flops;
  sum.causal_flops += sign * step.causal_flops;
  sum.tokens += sign * step.tokens;
  sum.memory_used_fraction += sign * step.memory_used_fraction;
}

void RunAverages::add(const StepRecord& record) {
  const double devices = record.num_devices;
  const Step step{record.elapsed_ms, record.flops / devices, record.causal_flops / devices,
                  static_cast<double>(record.tokens) / devices, record.memory_used_fraction()};
  if (count_ < 2) first_[count_] = step;
  last_ = step;
  accumulate(sum_, step, 1);
  ++count_;
}

RunSummary RunAverages::summary() const {
  Step sum = sum_;
  int64_t count = count_;
  const auto leave_out = [&](const Step& step) {
    accumulate(sum, step, -1);
    --count;
  };
  if (count_ >= 2) leave_out(first_[0]);
  if (count_ >= 4) {
    leave_out(first_[1]);
    leave_out(last_);
  }
  if (count == 0) return {};
  const double n = static_cast<double>(count), seconds = sum.elapsed_ms / 1e3;
  const auto rate = [&](double amount) { return seconds > 0 ? amount / seconds : 0; };
  return {count,
          sum.elapsed_ms / n,
          rate(sum.flops) / 1e12,
          rate(sum.causal_flops) / 1e12,
          rate(sum.tokens),
          sum.memory_used_fraction / n};
}

}  // namespace megalith
