#include "train/batch_schedule.h"

#include <algorithm>

namespace megalith {

BatchSchedule::BatchSchedule(int64_t global_batch_size, int64_t micro_batch_size, int64_t data_parallel_size,
                             const std::vector<int64_t>& rampup, bool decreases, std::vector<UserError>& errors)
    : global_(global_batch_size), chunk_(micro_batch_size * data_parallel_size) {
  if (!rampup.empty()) {
    if (rampup.size() != 3) {
      errors.emplace_back(fmt::format("rampup_batch_size has {} numbers", rampup.size()),
                          "give three: start, increment and samples, as in --rampup_batch_size 32 32 65536");
    } else if (rampup[0] < 1 || rampup[1] < 1 || rampup[2] < 1) {
      errors.emplace_back(
          fmt::format("rampup_batch_size {} {} {} has a number below 1", rampup[0], rampup[1], rampup[2]),
          "give start, increment and samples, each at least 1");
    } else if (rampup[0] > global_ || (global_ - rampup[0]) % rampup[1] != 0) {
      errors.emplace_back(fmt::format("rampup_batch_size: steps of {} do not lead from {} to global_batch_size {}",
                                      rampup[1], rampup[0], global_),
                          "choose a start below global_batch_size, and an increment that divides their difference");
    } else if (rampup[0] < global_) {
      rampup_ = BatchRampup{rampup[0], rampup[1], rampup[2]};
    }
  }
  const int64_t first = rampup_ ? rampup_->start : global_, increment = rampup_ ? rampup_->increment : 1;
  for (int64_t size = first; size <= global_; size += increment) {
    if (size % chunk_ == 0 || (decreases && size >= chunk_)) continue;
    const char* name = size == global_ ? "global_batch_size" : "rampup_batch_size";
    const int64_t below = size / chunk_ * chunk_, above = below + chunk_;
    const std::string remedy = below > 0 ? fmt::format("use {} or {}", below, above) : fmt::format("use {}", above);
    errors.emplace_back(fmt::format("{} {} is not a multiple of micro_batch_size {} times the data-parallel size {}",
                                    name, size, micro_batch_size, data_parallel_size),
                        size > chunk_ ? remedy + ", or set --decrease_batch_size_if_needed" : remedy);
    global_ = chunk_;
    rampup_.reset();
    return;
  }
}

int64_t BatchSchedule::asked_samples(int64_t consumed) const {
  if (!rampup_ || consumed > rampup_->samples) return global_;
  // In float64 like Megatron-LM, so that sizes change at the same step.
  const int64_t num_increments = (global_ - rampup_->start) / rampup_->increment;
  const double per_increment = static_cast<double>(rampup_->samples) / static_cast<double>(num_increments);
  const auto done = static_cast<int64_t>(static_cast<double>(consumed) / per_increment);
  return std::min(global_, rampup_->start + done * rampup_->increment);
}

int64_t BatchSchedule::num_iterations(int64_t train_samples) const {
  if (!rampup_) return train_samples / global_;
  int64_t consumed = 0, iterations = 0;
  while (consumed <= rampup_->samples && consumed <= train_samples) {
    consumed += asked_samples(consumed);
    ++iterations;
  }
  return iterations + std::max<int64_t>(train_samples - consumed, 0) / global_;
}

int64_t BatchSchedule::consumed_by(int64_t num_iterations) const {
  int64_t consumed = 0, done = 0;
  for (; rampup_ && done < num_iterations && consumed <= rampup_->samples; ++done) consumed += samples(consumed);
  return consumed + (num_iterations - done) * (global_ / chunk_ * chunk_);
}

}  // namespace megalith
