// See step_statistics.h. The vector of sums: a pair for each loss, the observations, two numbers of the gradient, a
// number of votes for each reason.
#include "train/step_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int64_t kGradientNumbers = 2;

at::Tensor added(const at::Tensor& sum, const at::Tensor& value) { return sum.defined() ? sum + value : value; }

// Whether this rank is the first of those that see the same.
bool is_first_of_replicas(const AxisSet& axes, const Groups& groups) {
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp}) {
    if (!axes.contains(axis) && groups.of(axis)->rank() != 0) return false;
  }
  return true;
}

}  // namespace

StepStatistics::StepStatistics(std::vector<std::string> losses, std::vector<ObservationSpec> observations,
                               const Groups& groups, at::Device device)
    : losses_(std::move(losses)), groups_(groups), device_(device), loss_sums_(losses_.size()) {
  num_sums_ = 2 * std::ssize(losses_);
  for (ObservationSpec& spec : observations) {
    Slot& slot = slots_.emplace_back();
    const bool is_max = spec.reduce == ObservationReduce::kMax;
    // Behind a mean's numbers stands how many forward passes gave them.
    const int64_t size = spec.size + (spec.reduce == ObservationReduce::kMean ? 1 : 0);
    int64_t& end = is_max ? num_maxima_ : num_sums_;
    slot.begin = end;
    end += size;
    slot.is_own = is_first_of_replicas(spec.axes, groups);
    slot.spec = std::move(spec);
  }
}

StepStatistics::Slot& StepStatistics::slot_of(const Observation& observation) {
  const auto found = std::ranges::find_if(slots_, [&](const Slot& slot) {
    return slot.spec.name == observation.name && slot.spec.layer == observation.layer;
  });
  MEGALITH_CHECK(found != slots_.end(), "the model did not announce its observation '{}' of layer {}", observation.name,
                 observation.layer);
  MEGALITH_CHECK(observation.values.numel() == found->spec.size, "'{}' of layer {}: {} numbers, not {}",
                 observation.name, observation.layer, observation.values.numel(), found->spec.size);
  return *found;
}

void StepStatistics::add(const ModelOutput& output) {
  for (const LossTerm& term : output.terms) {
    const auto place = std::ranges::find(losses_, term.name);
    MEGALITH_CHECK(place != losses_.end(), "neither the task nor the model announced the loss '{}'", term.name);
    auto& [sum, weight] = loss_sums_[static_cast<size_t>(place - losses_.begin())];
    sum = added(sum, term.sum);
    weight = added(weight, term.weight);
  }
  for (const Observation& observation : output.observations) {
    Slot& slot = slot_of(observation);
    ++slot.num_passes;
    if (slot.spec.reduce == ObservationReduce::kMax && slot.values.defined()) {
      slot.values = at::maximum(slot.values, observation.values);
    } else {
      slot.values = added(slot.values, observation.values);
    }
  }
}

at::Tensor StepStatistics::sums() const {
  const at::Tensor all =
      at::zeros({num_sums_ + kGradientNumbers + kMostVote}, at::TensorOptions(device_).dtype(at::kDouble));
  // The ranks of tp have the same losses.
  for (size_t i = 0; i < losses_.size() && groups_.tp->is_first(); ++i) {
    if (!loss_sums_[i].first.defined()) continue;
    all[static_cast<int64_t>(2 * i)].copy_(loss_sums_[i].first);
    all[static_cast<int64_t>(2 * i + 1)].copy_(loss_sums_[i].second);
  }
  for (const Slot& slot : slots_) {
    if (slot.spec.reduce == ObservationReduce::kMax || !slot.is_own || !slot.values.defined()) continue;
    all.narrow(0, slot.begin, slot.spec.size).copy_(slot.values.reshape({-1}));
    if (slot.spec.reduce == ObservationReduce::kMean) {
      all[slot.begin + slot.spec.size].fill_(static_cast<double>(slot.num_passes));
    }
  }
  if (gradient_.defined()) all.narrow(0, num_sums_, kGradientNumbers).copy_(gradient_);
  if (vote_ > 0) all[num_sums_ + kGradientNumbers + vote_ - 1].fill_(1);
  return all;
}

at::Tensor StepStatistics::maxima() const {
  const at::Tensor all =
      at::full({num_maxima_}, -std::numeric_limits<double>::infinity(), at::TensorOptions(device_).dtype(at::kDouble));
  for (const Slot& slot : slots_) {
    if (slot.spec.reduce != ObservationReduce::kMax || !slot.values.defined()) continue;
    all.narrow(0, slot.begin, slot.spec.size).copy_(slot.values.reshape({-1}));
  }
  return all;
}

void StepStatistics::exchange() {
  MEGALITH_CHECK(vote_ >= 0 && vote_ <= kMostVote, "a vote of {}", vote_);
  const at::Tensor summed = sums().to(groups_.world->device());
  groups_.world->all_reduce(summed, ReduceOp::kSum, "statistics of the step").wait();
  at::Tensor largest;
  if (num_maxima_ > 0) {
    largest = maxima().to(groups_.world->device());
    groups_.world->all_reduce(largest, ReduceOp::kMax, "maxima of the step").wait();
  }
  read(summed, largest);
}

void StepStatistics::read(const at::Tensor& sums, const at::Tensor& maxima) {
  // The one place where the host waits for the device once a step's forward passes have begun.
  const at::Tensor host = (num_maxima_ > 0 ? at::cat({sums, maxima}) : sums).to(at::kCPU);
  const double* numbers = host.const_data_ptr<double>();
  for (size_t i = 0; i < losses_.size(); ++i) {
    reduced_losses_.push_back({.name = losses_[i], .sum = numbers[2 * i], .weight = numbers[2 * i + 1]});
  }
  for (Slot& slot : slots_) {
    const bool is_max = slot.spec.reduce == ObservationReduce::kMax;
    slot.reduced = (is_max ? maxima : sums).narrow(0, slot.begin, slot.spec.size).to(device_);
    slot.host = host.narrow(0, (is_max ? sums.numel() : 0) + slot.begin, slot.spec.size);
    if (slot.spec.reduce != ObservationReduce::kMean) continue;
    slot.reduced = slot.reduced / sums[slot.begin + slot.spec.size].clamp_min(1).to(device_);
    slot.host = slot.host / host[slot.begin + slot.spec.size].clamp_min(1);
  }
  gradient_ = host.narrow(0, num_sums_, kGradientNumbers);
  vote_ = 0;
  for (int reason = 1; reason <= kMostVote; ++reason) {
    if (numbers[num_sums_ + kGradientNumbers + reason - 1] > 0) vote_ = reason;
  }
}

std::vector<ObservedTensor> StepStatistics::observed() const {
  std::vector<ObservedTensor> all;
  for (const Slot& slot : slots_) all.push_back({&slot.spec, slot.reduced});
  return all;
}

std::vector<ObservedValues> StepStatistics::observed_values() const {
  std::vector<ObservedValues> all;
  for (const Slot& slot : slots_) {
    const at::Tensor host = slot.host.contiguous();
    const double* first = host.const_data_ptr<double>();
    all.push_back({slot.spec.name, slot.spec.layer, std::vector<double>(first, first + host.numel())});
  }
  return all;
}

}  // namespace megalith
