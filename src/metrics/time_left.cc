#include "metrics/time_left.h"

namespace megalith {

std::optional<double> TimeLeft::after(const StepRecord& record) {
  const double now_s = clock_();
  const bool is_first = !has_first_;
  if (is_first) {
    has_first_ = true;
    first_at_s_ = now_s;
    first_iteration_ = record.iteration;
    first_samples_ = record.consumed_samples;
  }
  const int64_t left = record.train_iters - record.iteration;
  if (left <= 0) return std::nullopt;
  const bool has_samples = train_samples_ > record.consumed_samples && record.consumed_samples >= first_samples_;
  const int64_t samples_left = has_samples ? train_samples_ - record.consumed_samples : left;
  const int64_t of_first = has_samples ? record.global_batch_size : 1;
  const int64_t since = has_samples ? record.consumed_samples - first_samples_ : record.iteration - first_iteration_;
  if (is_first && of_first > 0) {
    return record.elapsed_ms / 1e3 * static_cast<double>(samples_left) / static_cast<double>(of_first);
  }
  if (since <= 0) return std::nullopt;
  return (now_s - first_at_s_) * static_cast<double>(samples_left) / static_cast<double>(since);
}

}  // namespace megalith
