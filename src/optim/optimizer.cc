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

OptimizerStep Optimizer::step(double lr, double weight_decay, double loss_scale) {
  OptimizerStep result;
  std::vector<at::Tensor> counted;
  for (const OwnedPart& part : data_.parts()) {
    if (counts_here(part, groups_)) counted.push_back(part.grad);
  }
  const double local_square = ops::squared_norm(counted, kernels_).item<double>();
  const double square = groups_.world->reduced(local_square, ReduceOp::kSum, "gradient norm");
  result.grad_norm = std::sqrt(square) / loss_scale;
  if (!std::isfinite(square)) {
    const int64_t world_size = groups_.world->size();
    const bool is_bad = !std::isfinite(local_square);
    const double first =
        groups_.world->reduced(is_bad ? static_cast<double>(groups_.rank) : static_cast<double>(world_size),
                               ReduceOp::kMin, "first rank with a bad gradient");
    result.first_bad_rank = static_cast<int>(first);
    if (is_bad) result.bad_parameter = find_bad_parameter();
    result.was_skipped = true;
    return result;
  }
  if (options_.log_num_zeros_in_grad) {
    double zeros = 0;
    for (const at::Tensor& grad : counted) {
      zeros += static_cast<double>(grad.numel()) - static_cast<double>(at::count_nonzero(grad).item<int64_t>());
    }
    result.num_zeros = groups_.world->reduced(zeros, ReduceOp::kSum, "zeros in the gradient");
  }
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

std::string Optimizer::find_bad_parameter() const {
  for (const OwnedPart& part : data_.parts()) {
    if (!at::isfinite(part.grad).all().item<bool>()) return part.parameter->name();
  }
  return "";
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
