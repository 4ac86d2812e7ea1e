#include "train/loss_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace {

constexpr double kDeviationOfMad = 1.4826;  // normal distribution: 1 / Phi^-1(3/4)
constexpr double kLeastDeviation = 1e-3;    // relative to the median: nearly constant losses must not stop a run
constexpr size_t kEnough = 16;
constexpr int64_t kLag = 2;
constexpr std::string_view kLossOf = "loss_of_iteration_";

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

double spike_limit(std::span<const double> losses, double threshold) {
  MEGALITH_CHECK(!losses.empty(), "a limit of no losses");
  std::vector<double> values(losses.begin(), losses.end());
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  const double deviation = std::max(kDeviationOfMad * median_of(values), kLeastDeviation * std::abs(median));
  return median + threshold * deviation;
}

size_t LossWatch::least() const {
  return std::min<size_t>(kEnough, static_cast<size_t>(options_.loss_spike_window) / 2);
}

double LossWatch::limit(int64_t iteration) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (options_.loss_spike_action == LossSpikeAction::kNone) return kNone;
  std::vector<double> known;
  for (const Loss& loss : losses_) {
    if (loss.iteration <= iteration - kLag) known.push_back(loss.value);
  }
  if (known.size() < least()) return kNone;
  const size_t excess = known.size() - std::min(known.size(), static_cast<size_t>(options_.loss_spike_window));
  return spike_limit(std::span(known).subspan(excess), options_.loss_spike_threshold);
}

void LossWatch::add(int64_t iteration, double loss) {
  if (options_.loss_spike_action == LossSpikeAction::kNone || !std::isfinite(loss)) return;
  losses_.push_back({iteration, loss});
  while (std::ssize(losses_) > options_.loss_spike_window + kLag - 1) losses_.pop_front();
}

void LossWatch::save(std::map<std::string, double>& numbers) const {
  for (const Loss& loss : losses_) numbers[fmt::format("{}{}", kLossOf, loss.iteration)] = loss.value;
}

void LossWatch::load(const std::map<std::string, double>& numbers) {
  losses_.clear();
  if (options_.loss_spike_action == LossSpikeAction::kNone) return;
  for (const auto& [name, value] : numbers) {
    if (!name.starts_with(kLossOf)) continue;
    const std::string digits = name.substr(kLossOf.size());
    const bool is_number = !digits.empty() && digits.size() < 18 &&
                           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number || !std::isfinite(value)) {
      throw UserError(fmt::format("the checkpoint's {} is {}, expected a finite loss of an iteration", name, value));
    }
    losses_.push_back({std::stoll(digits), value});
  }
  std::ranges::sort(losses_, {}, &Loss::iteration);
  while (std::ssize(losses_) > options_.loss_spike_window + kLag - 1) losses_.pop_front();
}

}  // namespace megalith
