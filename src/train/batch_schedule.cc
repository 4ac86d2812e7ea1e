#include "train/batch_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/option_value.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// "1.5B" is 1500000000; no part of a token or sample.
std::optional<int64_t> scaled_number(std::string text) {
  constexpr std::string_view kUnits = "KMBT";
  double factor = 1;
  if (!text.empty()) {
    const char last = static_cast<char>(std::toupper(static_cast<unsigned char>(text.back())));
    if (const size_t unit = kUnits.find(last); unit != std::string_view::npos) {
      factor = std::pow(1000.0, static_cast<double>(unit + 1));
      text.pop_back();
    }
  }
  const auto number = parse_number(text);
  if (!number || !(*number >= 0) || *number * factor > 9e18) return std::nullopt;
  // Decimals are not exact in binary.
  const double scaled = *number * factor, whole = std::round(scaled);
  if (std::abs(scaled - whole) > 1e-12 * whole) return std::nullopt;
  return static_cast<int64_t>(whole);
}

}  // namespace

std::vector<BatchStep> parse_batch_steps(const std::string& text, int64_t seq_length, std::vector<UserError>& errors) {
  std::string words = text;
  std::replace(words.begin(), words.end(), ',', ' ');
  std::vector<BatchStep> steps;
  for (const std::string& word : split_words(words)) {
    const size_t colon = std::min(word.find(':'), word.size());
    const int64_t from = scaled_number(word.substr(0, colon)).value_or(-1);
    const int64_t samples = colon < word.size() ? scaled_number(word.substr(colon + 1)).value_or(0) : 0;
    if (from < 0 || samples < 1) {
      errors.emplace_back(fmt::format("step_batch_size_schedule has '{}'", word),
                          "write THRESHOLD:BATCH_SIZE in whole numbers, as in --step_batch_size_schedule "
                          "'0:768 250B:1536'");
      return {};
    }
    steps.push_back({.from = seq_length > 0 ? from / seq_length : from, .samples = samples});
  }
  std::ranges::sort(steps, {}, &BatchStep::from);
  const bool is_good = !steps.empty() && steps.front().from == 0 &&
                       std::ranges::adjacent_find(steps, std::ranges::equal_to{}, &BatchStep::from) == steps.end();
  if (is_good) return steps;
  errors.emplace_back(fmt::format("step_batch_size_schedule '{}' does not begin at 0, or has a threshold twice{}", text,
                                  seq_length > 0 ? fmt::format(" (in samples of {} tokens)", seq_length) : ""),
                      "give a first step of threshold 0, and thresholds at least a sample apart");
  return {};
}

BatchSchedule::BatchSchedule(int64_t global_batch_size, int64_t micro_batch_size, int64_t data_parallel_size,
                             const std::vector<int64_t>& rampup, bool decreases, std::vector<UserError>& errors,
                             std::vector<BatchStep> steps)
    : global_(global_batch_size), chunk_(micro_batch_size * data_parallel_size), steps_(std::move(steps)) {
  for (const BatchStep& step : steps_) {
    if (step.samples % chunk_ == 0) continue;
    errors.emplace_back(fmt::format("step_batch_size_schedule's {} is not a multiple of micro_batch_size {} times the "
                                    "data-parallel size {}",
                                    step.samples, micro_batch_size, data_parallel_size),
                        fmt::format("use multiples of {}", chunk_));
    global_ = chunk_;
    steps_.clear();
    return;
  }
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
  if (!steps_.empty()) return std::ranges::upper_bound(steps_, consumed, {}, &BatchStep::from)[-1].samples;
  if (!rampup_ || consumed > rampup_->samples) return global_;
  // In float64 like Megatron-LM, so that sizes change at the same step.
  const int64_t num_increments = (global_ - rampup_->start) / rampup_->increment;
  const double per_increment = static_cast<double>(rampup_->samples) / static_cast<double>(num_increments);
  const auto done = static_cast<int64_t>(static_cast<double>(consumed) / per_increment);
  return std::min(global_, rampup_->start + done * rampup_->increment);
}

int64_t BatchSchedule::num_iterations(int64_t train_samples) const {
  if (!steps_.empty()) {
    int64_t consumed = 0, iterations = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const int64_t end = std::min(i + 1 < steps_.size() ? steps_[i + 1].from : kNever, train_samples);
      if (consumed >= end) continue;
      const int64_t count = (end - consumed - 1) / steps_[i].samples + 1;
      consumed += count * steps_[i].samples;
      iterations += count;
    }
    return iterations;
  }
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
  for (size_t i = 0; i + 1 < steps_.size(); ++i) {
    const int64_t end = steps_[i + 1].from;
    if (consumed >= end) continue;
    const int64_t count = std::min((end - consumed - 1) / steps_[i].samples + 1, num_iterations - done);
    consumed += count * steps_[i].samples;
    done += count;
  }
  for (; rampup_ && done < num_iterations && consumed <= rampup_->samples; ++done) consumed += samples(consumed);
  return consumed + (num_iterations - done) * (global_ / chunk_ * chunk_);
}

}  // namespace megalith
