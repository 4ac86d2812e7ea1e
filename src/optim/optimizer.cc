#include "optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "device/transfer.h"
#include "ops/grad_norm/grad_norm.h"
#include "optim/adamw.h"
#include "optim/narrow_master.h"
#include "optim/state_layout.h"
#include "optim/update_rules.h"

namespace megalith {
namespace {

constexpr std::string_view kMasterState = "master";  // checkpoint/ knows this key

// Indices of a step's numbers; from kRanks on one per world rank.
constexpr int64_t kSquare = 0, kZeros = 1, kSanitized = 2, kRanks = 3;
static_assert(kZeros == kSquare + 1);  // as in ops::squared_norm_and_zeros

// True on one of the part's replicas, which world sums count; gradients are reduced, so replicas agree.
bool counts_here(const OwnedPart& part, const Groups& groups) {
  for (int axis = 0; axis < kNumAxes; ++axis) {
    if (!part.replica_axes.contains(static_cast<Axis>(axis))) continue;
    const std::vector<int>& places = part.parameter->placement().pipeline_ranks;
    const int first = static_cast<Axis>(axis) == Axis::kPp && !places.empty() ? places.front() : 0;
    if (groups.of(static_cast<Axis>(axis))->rank() != first) return false;
  }
  return true;
}

bool is_b_of_adapter(const Parameter& parameter) {
  return parameter.options().is_adapter && parameter.name().find(".lora_B") != std::string::npos;
}

// One device operator: a sum of squares is finite, infinite or NaN, and NaN is not less than anything.
at::Tensor is_finite_square(const at::Tensor& square) { return square.lt(std::numeric_limits<double>::infinity()); }

}  // namespace

Optimizer::Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels)
    : data_(data),
      groups_(groups),
      options_(options),
      kernels_(kernels),
      rules_(make_update_rules(options, kernels)),
      slots_(rules_.size()),
      device_(data.parts().empty() ? groups.world->device() : data.parts()[0].grad.device()) {
  const std::set<const OwnedPart*> are_on_host = parts_on_host();
  std::vector<HostUpdate::Entry> on_host;
  for (const OwnedPart* part : parts_of_rules()) {
    const size_t rule = rule_of(rules_, *part->parameter);
    const bool is_on_host = are_on_host.contains(part);
    UpdateSlot slot = make_slot(*part, *rules_[rule], is_on_host);
    if (is_on_host && has_own_memory(device_)) {
      on_host.push_back({rule, std::move(slot)});
    } else {
      slots_[rule].push_back(std::move(slot));
    }
  }
  if (!on_host.empty()) {
    host_ = std::make_unique<HostUpdate>(device_, std::move(on_host), options.overlap_cpu_optimizer_d2h_h2d);
  }
  num_steps_ = at::zeros({}, at::TensorOptions(is_moved_by_host() ? at::kCPU : device_).dtype(at::kDouble));
  for (const auto& rule : rules_) rule->prepare(data, groups);
  reset_masters();
}

std::vector<const OwnedPart*> Optimizer::parts_of_rules() {
  std::vector<const OwnedPart*> parts;
  auto next = data_.parts().begin();
  for (const ParameterRuns& runs : data_.runs()) {
    Parameter* const parameter = runs.parameter;
    if (next != data_.parts().end() && next->parameter == parameter) {
      parts.push_back(&*next++);
    } else if (rules_[rule_of(rules_, *parameter)]->granularity() == UpdateRule::Granularity::kSums) {
      const auto empty = [&](at::ScalarType dtype) { return at::empty({0}, at::TensorOptions(device_).dtype(dtype)); };
      parts.push_back(&empty_parts_.emplace_back(OwnedPart{.parameter = parameter,
                                                           .range = FlatRange{},
                                                           .model = empty(parameter->value().scalar_type()),
                                                           .grad = empty(parameter->grad_dtype()),
                                                           .replica_axes = {}}));
    }
  }
  for (; next != data_.parts().end(); ++next) parts.push_back(&*next);
  return parts;
}

// As many parts, in order, as fit the fraction of elements.
std::set<const OwnedPart*> Optimizer::parts_on_host() const {
  std::set<const OwnedPart*> on_host;
  if (!options_.optimizer_cpu_offload || device_.is_cpu()) return on_host;
  int64_t all = 0, taken = 0;
  for (const OwnedPart& part : data_.parts()) all += part.model.numel();
  const double limit = options_.optimizer_offload_fraction * static_cast<double>(all);
  for (const OwnedPart& part : data_.parts()) {
    if (static_cast<double>(taken + part.model.numel()) > limit) continue;
    on_host.insert(&part);
    taken += part.model.numel();
  }
  return on_host;
}

template <typename Visit>
void Optimizer::for_each_slot(const Visit& visit) const {
  for (const auto& slots : slots_) {
    for (const UpdateSlot& slot : slots) visit(slot);
  }
  if (!host_) return;
  for (const HostUpdate::Entry& entry : host_->entries()) visit(entry.slot);
}

UpdateSlot Optimizer::make_slot(const OwnedPart& part, const UpdateRule& rule, bool is_on_host) {
  UpdateSlot slot{.part = &part, .grad = part.grad};
  const at::ScalarType wide = part.parameter->wide_dtype();
  const size_t first = state_.size();
  // Estimates use kMeta parts, with states there too.
  const bool is_elsewhere = is_on_host && has_own_memory(part.grad.device());
  const auto like = at::TensorOptions(is_elsewhere ? at::Device(at::kCPU) : part.grad.device()).dtype(wide);
  const std::vector<StateSpec> specs = rule.state(*part.parameter);
  std::vector<const Placement*> whole;
  for (const StateSpec& spec : specs) {
    whole.push_back(spec.shape == StateShape::kElements
                        ? nullptr
                        : &whole_placements_.emplace_back(StateLayout(*part.parameter, spec.shape).placement()));
    const at::IntArrayRef sizes = whole.back() ? at::IntArrayRef(whole.back()->local_shape) : part.model.sizes();
    slot.state.push_back(at::zeros(sizes, like.dtype(spec.dtype)));
  }
  // On the host, a weight that is its own master travels every step (host_update.h).
  const bool is_own_master = part.model.scalar_type() == wide;
  const ops::MasterForm form = master_form(rule, part.model.scalar_type(), options_);
  const bool has_remainder = form == ops::MasterForm::kRemainder;
  if (is_own_master) {
    (is_elsewhere ? slot.model : slot.master) = part.model;
  } else {
    slot.model = part.model;
    if (has_remainder) {
      slot.remainder = at::zeros(part.model.sizes(), like.dtype(at::kShort));
      state_.push_back({std::string(kMasterState), &part, slot.remainder, stored_master(slot)});
    } else if (form == ops::MasterForm::kWhole) {
      slot.master = at::empty(part.model.sizes(), like);
      state_.push_back({std::string(kMasterState), &part, slot.master});
    }
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    state_.push_back({.key = specs[i].key, .part = &part, .tensor = slot.state[i], .whole = whole[i]});
    if (has_remainder && i == AdamwRule::kExpAvgSq) state_.back().form = stored_square(slot);
  }
  for (size_t i = first; i < state_.size(); ++i) state_[i].is_on_host = is_on_host;
  return slot;
}

void Optimizer::reset_masters() {
  data_.wait_for_parameters();
  for_each_slot(reset_master);
}

std::vector<at::Tensor> Optimizer::counted_gradients() const {
  std::vector<at::Tensor> counted;
  for (const OwnedPart& part : data_.parts()) {
    if (!rests(part) && counts_here(part, groups_)) counted.push_back(part.grad);
  }
  return counted;
}

at::Tensor Optimizer::local_numbers() const {
  const std::vector<at::Tensor> counted = counted_gradients();
  const auto doubles = at::TensorOptions(device_).dtype(at::kDouble);
  const at::Tensor numbers = at::zeros({kRanks + groups_.world->size()}, doubles);
  if (options_.sft_sanitize_nan_grads) {
    // Gradients are sums, so replicas do the same.
    for (const OwnedPart& part : data_.parts()) {
      const at::Tensor is_bad = at::isfinite(part.grad).logical_not();
      if (counts_here(part, groups_)) numbers[kSanitized].add_(is_bad.sum());
      part.grad.masked_fill_(is_bad, 0);
    }
  }
  if (counted.empty()) return numbers;
  const at::Tensor square = numbers[kSquare];
  if (options_.log_num_zeros_in_grad) {
    numbers.narrow(0, kSquare, 2).copy_(ops::squared_norm_and_zeros(counted, kernels_));
  } else {
    square.copy_(ops::squared_norm(counted, kernels_));
  }
  numbers[kRanks + groups_.rank].copy_(is_finite_square(square).eq(0));
  return numbers;
}

OptimizerStep Optimizer::step(const LearningRates& rates, double weight_decay, double loss_scale) {
  at::Tensor numbers = local_numbers();
  if (groups_.world->size() > 1) {
    numbers = numbers.to(groups_.world->device());
    groups_.world->all_reduce(numbers, ReduceOp::kSum, "gradient norm").wait();
  }
  step(rates, weight_decay, loss_scale, numbers);
  return read(numbers.to(at::kCPU), loss_scale, /*has_gradients=*/true);
}

void Optimizer::step(const LearningRates& rates, double weight_decay, double loss_scale,
                     const at::Tensor& reduced, const at::Tensor& is_allowed) {
  // Appends the caller's decision, so everything reaches the host at once.
  const at::Tensor known =
      is_allowed.defined() ? at::cat({reduced, is_allowed.to(reduced.scalar_type()).view({1})}) : reduced;
  const HostCopy to_host = is_moved_by_host() ? HostCopy(known) : HostCopy();
  const at::Tensor& numbers = is_moved_by_host() ? to_host.wait() : known;
  const at::Tensor norm = numbers[kSquare].sqrt() / loss_scale;
  is_made_ = is_finite_square(numbers[kSquare]);
  if (options_.grad_norm_skip_threshold) is_made_ = is_made_ & norm.le(*options_.grad_norm_skip_threshold);
  if (is_allowed.defined()) is_made_ = is_made_ & numbers[numbers.numel() - 1].gt(0);
  if (is_made_.is_cpu()) {  // reading does not wait
    if (!is_made_.item<bool>()) return;
    is_made_ = at::Tensor();
  }
  at::Tensor scale = at::full_like(norm, 1.0 / loss_scale);
  if (options_.clip_grad > 0) {
    scale.mul_(at::full_like(norm, options_.clip_grad).div_(norm + 1e-6).clamp_max_(1.0));
  }
  num_steps_ = is_made_.defined() ? num_steps_ + is_made_.to(at::kDouble) : num_steps_ + 1;
  const UpdateStep update{
      .grad_scale = sent_to(scale, device_), .number = sent_to(num_steps_, device_), .is_made = is_made_};
  const auto set_step = [&](UpdateSlot& slot) {
    const ParameterOptions& parameter = slot.part->parameter->options();
    slot.lr = parameter.is_of_vocabulary               ? rates.of_vocabulary
              : is_b_of_adapter(*slot.part->parameter) ? rates.of_adapters_b
                                                       : rates.lr;
    slot.weight_decay = weight_decay * parameter.decay_mult;
  };
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    for (UpdateSlot& slot : slots_[rule]) set_step(slot);
    this->update(rule, slots_[rule], update);
  }
  if (host_) {
    const UpdateStep on_host{.grad_scale = scale, .number = num_steps_, .is_made = {}};
    host_->run([&](size_t rule, std::span<UpdateSlot> slots) {
      for (UpdateSlot& slot : slots) set_step(slot);
      this->update(rule, slots, on_host);
    });
  }
  data_.publish();
}

void Optimizer::let_rest(std::set<const Parameter*> parameters, int64_t steps) {
  resting_ = std::move(parameters);
  rest_steps_ = steps;
}

void Optimizer::update(size_t rule, std::span<UpdateSlot> slots, const UpdateStep& step) {
  if (resting_.empty()) return rules_[rule]->update(slots, step);
  std::vector<UpdateSlot> rested, others;
  for (const UpdateSlot& slot : slots) {
    (resting_.contains(slot.part->parameter) ? rested : others).push_back(slot);
  }
  rules_[rule]->update(others, step);
  if (iteration_ <= rest_steps_) return;
  UpdateStep since = step;
  since.number = step.number.clamp_max(iteration_ - rest_steps_);
  rules_[rule]->update(rested, since);
}

OptimizerStep Optimizer::read(const at::Tensor& numbers, double loss_scale, bool has_gradients,
                              bool is_allowed) const {
  const double* const first = numbers.const_data_ptr<double>();
  OptimizerStep result;
  result.grad_norm = std::sqrt(first[kSquare]) / loss_scale;
  result.num_sanitized = first[kSanitized];
  if (std::isfinite(first[kSquare])) {
    if (options_.log_num_zeros_in_grad) result.num_zeros = first[kZeros];
    const bool is_large = options_.grad_norm_skip_threshold && result.grad_norm > *options_.grad_norm_skip_threshold;
    result.skipped = is_large ? SkipReason::kLargeNorm : is_allowed ? SkipReason::kNone : SkipReason::kNotAllowed;
    return result;
  }
  result.skipped = SkipReason::kNotFinite;
  const double* const ranks = first + kRanks;
  const int size = groups_.world->size();
  // Past the last rank if only the total is too large.
  result.first_bad_rank = static_cast<int>(std::find_if(ranks, ranks + size, [](double n) { return n > 0; }) - ranks);
  if (has_gradients && ranks[groups_.rank] > 0) result.bad_parameter = find_bad_parameter();
  return result;
}

std::string Optimizer::find_bad_parameter() const {
  for (const OwnedPart& part : data_.parts()) {
    if (!rests(part) && !at::isfinite(part.grad).all().item<bool>()) return part.parameter->name();
  }
  return "";
}

int64_t Optimizer::num_steps() const { return static_cast<int64_t>(num_steps_.item<double>()); }

void Optimizer::set_num_steps(int64_t steps) { num_steps_.fill_(static_cast<double>(steps)); }

int64_t Optimizer::num_bytes() const {
  int64_t bytes = 0;
  for (const OptimizerTensor& entry : state_) bytes += static_cast<int64_t>(entry.tensor.nbytes());
  return bytes;
}

int64_t Optimizer::host_bytes() const {
  int64_t bytes = host_ ? host_->staging_bytes() : 0;
  for (const OptimizerTensor& entry : state_) {
    if (entry.is_on_host) bytes += static_cast<int64_t>(entry.tensor.nbytes());
  }
  return bytes;
}

std::string Optimizer::rules_text() const {
  std::vector<size_t> counts;
  for (const auto& slots : slots_) counts.push_back(slots.size());
  if (host_) {
    for (const HostUpdate::Entry& entry : host_->entries()) ++counts[entry.rule];
  }
  std::string text;
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    if (counts[rule] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rules_[rule]->name(), counts[rule]);
  }
  return text;
}

double Optimizer::params_norm() const {
  std::vector<at::Tensor> masters, on_host;
  double square = 0;
  for_each_slot([&](const UpdateSlot& slot) {
    if (!counts_here(*slot.part, groups_)) return;
    if (slot.master.defined()) {
      (slot.master.device() == device_ ? masters : on_host).push_back(slot.master);
    } else {  // one at a time: each is a copy
      square += ops::squared_norm({wide_master(slot)}, kernels_).item<double>();
    }
  });
  for (const std::vector<at::Tensor>& some : {masters, on_host}) {
    if (!some.empty()) square += ops::squared_norm(some, kernels_).item<double>();
  }
  return std::sqrt(groups_.world->reduced(square, ReduceOp::kSum, "parameter norm"));
}

}  // namespace megalith
