#include "metrics/time_left.h"

namespace megalith {

std::optional<double> TimeLeft::after(const StepRecord& record) {
  const double now_s = clock_();
  if (num_steps_++ == 0) first_at_s_ = now_s;
  const int64_t left = record.train_iters - record.iteration;
  if (left <= 0) return std::nullopt;
  const double step_s =
      num_steps_ > 1 ? (now_s - first_at_s_) / static_cast<double>(num_steps_ - 1) : record.elapsed_ms / 1e3;
  return step_s * static_cast<double>(left);
}

}  // namespace megalith
