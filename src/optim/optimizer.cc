// See optimizer.h.
#include "optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "ops/grad_norm/grad_norm.h"
#include "optim/update_rules.h"

namespace megalith {
namespace {

constexpr std::string_view kMasterState = "master";  // checkpoint/ knows this key

// Whether this rank counts the part in sums over the world: one of its replicas does. Gradients are reduced by then, so
// replicas hold the same.
bool counts_here(const OwnedPart& part, const Groups& groups) {
  for (int axis = 0; axis < kNumAxes; ++axis) {
    if (part.replica_axes.contains(static_cast<Axis>(axis)) && groups.of(static_cast<Axis>(axis))->rank() != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

Optimizer::Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels)
    : data_(data),
      groups_(groups),
      options_(options),
      kernels_(kernels),
      rules_(make_update_rules(options, kernels)),
      slots_(rules_.size()) {
  for (const OwnedPart& part : data.parts()) {
    const size_t rule = rule_of(rules_, *part.parameter);
    slots_[rule].push_back(make_slot(part, *rules_[rule]));
  }
  for (const auto& rule : rules_) rule->prepare(data, groups);
  reset_masters();
}

UpdateSlot Optimizer::make_slot(const OwnedPart& part, const UpdateRule& rule) {
  UpdateSlot slot{.part = &part, .grad = part.grad};
  const auto like = part.grad.options();
  if (part.model.scalar_type() != part.grad.scalar_type()) {
    slot.model = part.model;
    slot.master = at::empty(part.model.sizes(), like);
    state_.push_back({std::string(kMasterState), &part, slot.master});
  } else {
    slot.master = part.model;
  }
  for (const StateSpec& spec : rule.state(part.grad.scalar_type())) {
    slot.state.push_back(at::zeros(part.model.sizes(), like.dtype(spec.dtype)));
    state_.push_back({spec.key, &part, slot.state.back()});
  }
  return slot;
}

void Optimizer::reset_masters() {
  data_.wait_for_parameters();
  for (const auto& slots : slots_) {
    for (const UpdateSlot& slot : slots) {
      if (slot.model.defined()) slot.master.copy_(slot.model);
    }
  }
}

std::vector<at::Tensor> Optimizer::counted_gradients() const {
  std::vector<at::Tensor> counted;
  for (const OwnedPart& part : data_.parts()) {
    if (counts_here(part, groups_)) counted.push_back(part.grad);
  }
  return counted;
}

at::Tensor Optimizer::local_numbers() const {
  const std::vector<at::Tensor> counted = counted_gradients();
  const at::Tensor square = ops::squared_norm(counted, kernels_).to(at::kDouble);
  at::Tensor zeros = at::zeros_like(square);
  if (options_.log_num_zeros_in_grad) {
    for (const at::Tensor& grad : counted) zeros = zeros + (grad.numel() - at::count_nonzero(grad));
  }
  return at::stack({square, zeros});
}

OptimizerStep Optimizer::step(double lr, double weight_decay, double loss_scale) {
  const at::Tensor numbers = local_numbers().to(groups_.world->device());
  groups_.world->all_reduce(numbers, ReduceOp::kSum, "gradient norm").wait();
  return step(lr, weight_decay, loss_scale, numbers.to(at::kCPU));
}

OptimizerStep Optimizer::step(double lr, double weight_decay, double loss_scale, const at::Tensor& numbers) {
  OptimizerStep result;
  const double square = numbers[0].item<double>();
  result.grad_norm = std::sqrt(square) / loss_scale;
  if (!std::isfinite(square)) {
    find_bad_gradient(result);
    result.was_skipped = true;
    return result;
  }
  if (options_.log_num_zeros_in_grad) result.num_zeros = numbers[1].item<double>();
  double scale = 1.0 / loss_scale;
  if (options_.clip_grad > 0) scale *= std::min(1.0, options_.clip_grad / (result.grad_norm + 1e-6));

  ++num_steps_;
  // A tensor, so that a GPU need not wait for the host.
  const at::Device device = data_.parts().empty() ? at::Device(at::kCPU) : data_.parts()[0].grad.device();
  const at::Tensor grad_scale = at::scalar_tensor(scale, at::TensorOptions(device).dtype(at::kDouble));
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    for (UpdateSlot& slot : slots_[rule]) {
      const ParameterOptions& p = slot.part->parameter->options();
      slot.lr = lr * p.lr_mult;
      slot.weight_decay = weight_decay * p.decay_mult;
    }
    rules_[rule]->update(slots_[rule], grad_scale, num_steps_);
  }
  data_.publish();
  return result;
}

// Asked only when something was bad: the ranks meet once more.
void Optimizer::find_bad_gradient(OptimizerStep& result) const {
  const bool is_bad = !std::isfinite(ops::squared_norm(counted_gradients(), kernels_).item<double>());
  const auto own = static_cast<double>(is_bad ? groups_.rank : groups_.world->size());
  result.first_bad_rank =
      static_cast<int>(groups_.world->reduced(own, ReduceOp::kMin, "first rank with a bad gradient"));
  if (!is_bad) return;
  for (const OwnedPart& part : data_.parts()) {
    if (at::isfinite(part.grad).all().item<bool>()) continue;
    result.bad_parameter = part.parameter->name();
    return;
  }
}

int64_t Optimizer::num_bytes() const {
  int64_t bytes = 0;
  for (const OptimizerTensor& entry : state_) bytes += static_cast<int64_t>(entry.tensor.nbytes());
  return bytes;
}

std::string Optimizer::rules_text() const {
  std::string text;
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    if (slots_[rule].empty()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rules_[rule]->name(), slots_[rule].size());
  }
  return text;
}

}  // namespace megalith
