#include "nn/fp8_memory.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

#include "comm/groups.h"
#include "core/error.h"

namespace megalith {

namespace {

constexpr double kLargestE4m3 = 448;
constexpr double kNoNumber = std::numeric_limits<double>::infinity();

}  // namespace

int64_t AmaxLedger::add(int64_t count) {
  MEGALITH_CHECK(!is_allocated(), "a layer that comes after its ledger was used");
  return std::exchange(size, size + count);
}

void AmaxLedger::allocate(const at::TensorOptions& options, int64_t history_length) {
  scales = at::ones({size}, options);
  history = at::zeros({size, history_length}, options);
  amax = at::zeros({size}, options);
}

// For layers that run twice in a pass.
void AmaxLedger::record(int64_t first, const at::Tensor& seen) {
  at::Tensor entries = amax.narrow(0, first, seen.numel());
  at::maximum_out(entries, entries, seen.reshape({-1}));
}

void AmaxLedger::move_on(double largest, const DelayedScaling& how, const Groups& groups) {
  if (size == 0) return;
  // Reductions disagree on NaN but agree on infinity.
  amax.nan_to_num_(kNoNumber, kNoNumber);
  for (Group* group : {groups.dp_cp.get(), groups.tp.get()}) {
    if (group->size() > 1) group->all_reduce(amax, ReduceOp::kMax, "fp8 amax").wait();
  }
  const int64_t older = history.size(1) - 1;
  if (older > 0) history.narrow(1, 1, older).copy_(history.narrow(1, 0, older).clone());
  history.select(1, 0).copy_(amax);
  const at::Tensor chosen = how.takes_largest ? history.amax(1) : amax;
  constexpr double kMost = std::numeric_limits<float>::max();
  const at::Tensor next = (largest / chosen).div_(std::exp2(static_cast<double>(how.margin))).clamp_max_(kMost);
  scales.copy_(at::where(chosen.gt(0).logical_and(chosen.isfinite()), next, scales));
}

Fp8Memory::Fp8Memory(std::optional<DelayedScaling> delayed, double largest_gradient, bool keeps_weights)
    : delayed_(delayed), largest_gradient_(largest_gradient), keeps_weights_(keeps_weights) {}

int64_t Fp8Memory::Layer::first(OperandRole role) const {
  const int64_t of_role = role == OperandRole::kInput    ? first_input
                          : role == OperandRole::kWeight ? first_weight
                                                         : first_gradient;
  return of_role + about.first_expert;
}

int64_t Fp8Memory::add_layer(const RecipeLayer& about, bool has_transposed) {
  const int64_t count = std::max<int64_t>(about.num_experts, 1);
  Layer layer{.about = about, .first_input = 0, .first_weight = 0, .first_gradient = 0, .num_entries = count};
  if (is_delayed()) {
    layer.first_input = forward_.add(count);
    layer.first_weight = forward_.add(count);
    layer.first_gradient = backward_.add(count);
  }
  layers_.push_back(std::move(layer));
  num_copied_elements_ += (has_transposed ? 2 : 1) * about.num_weight_elements;
  return std::ssize(layers_) - 1;
}

void Fp8Memory::allocate() {
  if (!is_delayed() || layers_.empty() || forward_.is_allocated()) return;
  const RecipeLayer& some = layers_[0].about;
  const auto options = at::TensorOptions(some.device).dtype(some.dtype == at::kDouble ? at::kDouble : at::kFloat);
  forward_.allocate(options, delayed_->history_length);
  backward_.allocate(options, delayed_->history_length);
}

at::Tensor Fp8Memory::scale(int64_t number, OperandRole role) {
  allocate();
  const Layer& layer = layer_at(number);
  const bool is_gradient = role == OperandRole::kGradient;
  at::Tensor scales = is_gradient ? gradient_scales_ : forward_scales_;
  if (!scales.defined()) scales = is_gradient ? backward_.scales : forward_.scales;
  if (layer.about.num_experts == 0) return scales.select(0, layer.first(role));
  return scales.narrow(0, layer.first(role), layer.about.num_local_experts);
}

bool Fp8Memory::is_recording(OperandRole role) const {
  return pass_ == (role == OperandRole::kGradient ? Pass::kBackward : Pass::kForward);
}

void Fp8Memory::record(int64_t number, OperandRole role, const at::Tensor& amax) {
  (role == OperandRole::kGradient ? backward_ : forward_).record(layer_at(number).first(role), amax);
}

Fp8Memory::Weight* Fp8Memory::weight(int64_t layer) {
  return is_in_step_ && layer >= 0 ? &weights_.at(static_cast<size_t>(layer)) : nullptr;
}

void Fp8Memory::set_weight(int64_t layer, Operand operand, at::Tensor amax) {
  if (!keeps_weights_) {
    operand.values.reset();
    operand.transposed.reset();
  }
  *weight(layer) = {std::move(operand), std::move(amax)};
}

void Fp8Memory::begin_step() {
  allocate();
  pass_ = Pass::kNone;
  scales_of_microbatches_.clear();
  weights_.assign(layers_.size(), {});
  is_in_step_ = true;
}

void Fp8Memory::end_step() {
  weights_.clear();
  is_in_step_ = false;
}

void Fp8Memory::begin_forward(int microbatch) {
  pass_ = Pass::kForward;
  if (!is_delayed() || layers_.empty()) return;
  allocate();
  forward_.amax.zero_();
  forward_scales_ = scales_of_microbatches_[microbatch] = forward_.scales.clone();
}

void Fp8Memory::end_forward(int /*microbatch*/, const Groups& groups) {
  pass_ = Pass::kNone;
  forward_scales_.reset();
  if (is_delayed()) forward_.move_on(kLargestE4m3, *delayed_, groups);
}

void Fp8Memory::begin_backward(int microbatch) {
  pass_ = Pass::kBackward;
  if (!is_delayed() || layers_.empty()) return;
  const auto found = scales_of_microbatches_.extract(microbatch);
  MEGALITH_CHECK(!found.empty(), "a backward pass of microbatch {} without its forward pass", microbatch);
  forward_scales_ = found.mapped();
  backward_.amax.zero_();
  gradient_scales_ = backward_.scales.clone();
}

void Fp8Memory::end_backward(int /*microbatch*/, const Groups& groups) {
  pass_ = Pass::kNone;
  forward_scales_.reset();
  gradient_scales_.reset();
  if (is_delayed()) backward_.move_on(largest_gradient_, *delayed_, groups);
}

const std::vector<RecipeMemory::State>& Fp8Memory::states() {
  allocate();
  if (!states_.empty() || !is_delayed()) return states_;
  const auto add = [&](const std::string& key, const std::string& name, const at::Tensor& tensor) {
    Placement placement = Placement::whole(name, tensor.sizes().vec());
    placement.replica_axes = {Axis::kTp, Axis::kCp, Axis::kDp};
    states_.push_back({key, std::move(placement), tensor});
  };
  for (const Layer& layer : layers_) {
    const auto add_entries = [&](const std::string& operand, const AmaxLedger& ledger, int64_t first) {
      const std::string name = layer.about.name + "." + operand;
      add(kFp8ScaleKey, name, ledger.scales.narrow(0, first, layer.num_entries));
      add(kFp8HistoryKey, name, ledger.history.narrow(0, first, layer.num_entries));
    };
    add_entries("input", forward_, layer.first_input);
    add_entries("weight", forward_, layer.first_weight);
    add_entries("gradient", backward_, layer.first_gradient);
  }
  return states_;
}

}  // namespace megalith
