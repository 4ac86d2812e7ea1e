// The vector of sums: a pair per loss, observations, the gradient's numbers, votes per reason.
#include "train/step_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

at::Tensor added(const at::Tensor& sum, const at::Tensor& value) { return sum.defined() ? sum + value : value; }

// True on the first of ranks that see the same.
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
    // A mean's numbers are followed by the count of forward passes.
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

int64_t StepStatistics::num_gradient_numbers() const { return gradient_.defined() ? gradient_.numel() : 0; }

at::Tensor StepStatistics::sums() const {
  const at::Tensor all =
      at::zeros({num_sums_ + num_gradient_numbers() + kMostVote}, at::TensorOptions(device_).dtype(at::kDouble));
  // Ranks of tp have the same losses.
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
  if (gradient_.defined()) all.narrow(0, num_sums_, num_gradient_numbers()).copy_(sent_to(gradient_, device_));
  if (vote_ > 0) all[num_sums_ + num_gradient_numbers() + vote_ - 1].fill_(1);
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
  // A single rank's numbers stay where they are.
  const bool has_others = groups_.world->size() > 1;
  const at::Device meeting = has_others ? groups_.world->device() : device_;
  const at::Tensor summed = sums().to(meeting);
  groups_.world->all_reduce(summed, ReduceOp::kSum, "statistics of the step").wait();
  at::Tensor largest;
  if (num_maxima_ > 0) {
    largest = maxima().to(meeting);
    groups_.world->all_reduce(largest, ReduceOp::kMax, "maxima of the step").wait();
  }
  distribute(num_maxima_ > 0 ? at::cat({summed, largest}) : summed);
}

void StepStatistics::take(const at::Tensor& numbers) {
  const int64_t num_all = num_sums_ + num_gradient_numbers() + kMostVote + num_maxima_;
  MEGALITH_CHECK(numbers.numel() == num_all, "{} numbers of a step that has {}", numbers.numel(), num_all);
  distribute(numbers.to(groups_.world->size() > 1 ? groups_.world->device() : device_));
}

void StepStatistics::distribute(const at::Tensor& all) {
  const int64_t num_sums = all.numel() - num_maxima_;
  const at::Tensor summed = all.narrow(0, 0, num_sums), largest = all.narrow(0, num_sums, num_maxima_);
  on_its_way_ = HostCopy(all);
  for (Slot& slot : slots_) {
    const bool is_max = slot.spec.reduce == ObservationReduce::kMax;
    slot.reduced = (is_max ? largest : summed).narrow(0, slot.begin, slot.spec.size).to(device_);
    if (slot.spec.reduce != ObservationReduce::kMean) continue;
    slot.reduced = slot.reduced / summed[slot.begin + slot.spec.size].clamp_min(1).to(device_);
  }
  reduced_gradient_ = summed.narrow(0, num_sums_, num_gradient_numbers());
  reduced_loss_ = summed.narrow(0, 0, 2);
}

// The quotient of LossSum::mean(), so that host and device decide alike.
at::Tensor StepStatistics::loss() const {
  const at::Tensor weight = reduced_loss_[1];
  return reduced_loss_[0] / at::where(weight.gt(0), weight, at::ones_like(weight));
}

void StepStatistics::read() {
  if (std::exchange(is_read_, true)) return;
  const at::Tensor& host = on_its_way_.wait();
  MEGALITH_CHECK(host.defined(), "the statistics of a step are read before their exchange");
  const double* numbers = host.const_data_ptr<double>();
  const int64_t votes = num_sums_ + num_gradient_numbers(), num_all_sums = votes + kMostVote;
  for (size_t i = 0; i < losses_.size(); ++i) {
    reduced_losses_.push_back({.name = losses_[i], .sum = numbers[2 * i], .weight = numbers[2 * i + 1]});
  }
  for (Slot& slot : slots_) {
    const bool is_max = slot.spec.reduce == ObservationReduce::kMax;
    slot.host = host.narrow(0, (is_max ? num_all_sums : 0) + slot.begin, slot.spec.size);
    if (slot.spec.reduce != ObservationReduce::kMean) continue;
    slot.host = slot.host / host[slot.begin + slot.spec.size].clamp_min(1);
  }
  host_gradient_ = host.narrow(0, num_sums_, num_gradient_numbers());
  vote_ = 0;
  for (int reason = 1; reason <= kMostVote; ++reason) {
    if (numbers[votes + reason - 1] > 0) vote_ = reason;
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
