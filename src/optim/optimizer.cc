// AdamW over a rank's parameters; see optimizer.h.
#include "optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/error.h"
#include "ops/adamw.h"
#include "ops/grad_norm.h"

namespace megalith {
namespace {

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

void OptimizerOptions::visit(OptionVisitor& v) {
  v.group("Optimizer");
  v.field("optimizer", optimizer, "adam: AdamW with decoupled weight decay.").words({"adam"});
  v.field("adam_beta1", adam_beta1, "Decay of the first moment.").at_least(0).below(1);
  v.field("adam_beta2", adam_beta2, "Decay of the second moment.").at_least(0).below(1);
  v.field("adam_eps", adam_eps, "Added to the root of the second moment.").above(0);
  v.field("clip_grad", clip_grad, "Largest global gradient norm; 0 turns clipping off.").at_least(0);
  v.field("check_for_nan_in_loss_and_grad", check_for_nan_in_loss_and_grad,
          "Stop the run when the loss or a gradient is not finite; otherwise that step is skipped and counted.");
  v.field("log_num_zeros_in_grad", log_num_zeros_in_grad, "Count the zeros in the gradient, for the record.");
  v.field("use_precision_aware_optimizer", use_precision_aware_optimizer,
          "Allows moments in a narrower dtype than the master weights'.");
  v.choice("exp_avg_dtype", exp_avg_dtype, {"fp32", "bf16"},
           "Dtype that the first moment is kept in; it is updated in fp32.");
  v.choice("exp_avg_sq_dtype", exp_avg_sq_dtype, {"fp32", "bf16"},
           "Dtype that the second moment is kept in; the same as the first one's.");
}

std::vector<UserError> check_optimizer_options(const OptimizerOptions& options) {
  std::vector<UserError> errors;
  const auto name = [](MomentDtype dtype) { return dtype == MomentDtype::kBf16 ? "bf16" : "fp32"; };
  if (options.exp_avg_dtype != options.exp_avg_sq_dtype) {
    errors.emplace_back(fmt::format("exp_avg_dtype {} and exp_avg_sq_dtype {} differ", name(options.exp_avg_dtype),
                                    name(options.exp_avg_sq_dtype)),
                        "give both moments one dtype");
  } else if (options.exp_avg_dtype != MomentDtype::kFp32 && !options.use_precision_aware_optimizer) {
    errors.emplace_back(
        fmt::format("exp_avg_dtype {} needs use_precision_aware_optimizer", name(options.exp_avg_dtype)),
        "add --use_precision_aware_optimizer, or keep the moments in fp32");
  }
  return errors;
}

Optimizer::Optimizer(DataParallel& data, const Groups& groups, const OptimizerOptions& options, Kernels kernels)
    : data_(data), groups_(groups), options_(options), kernels_(kernels) {
  for (const OwnedPart& part : data.parts()) {
    Slot slot{&part, {}, {}, {}, false};
    slot.has_own_master = part.model.scalar_type() != part.grad.scalar_type();
    const auto like = part.grad.options();
    slot.master = slot.has_own_master ? at::empty(part.model.sizes(), like) : part.model;
    // An fp64 parameter is there for exactness: its moments stay fp64.
    const bool is_narrow = options_.exp_avg_dtype == MomentDtype::kBf16 && part.grad.scalar_type() == at::kFloat;
    const auto moments = is_narrow ? like.dtype(at::kBFloat16) : like;
    slot.exp_avg = at::zeros(part.model.sizes(), moments);
    slot.exp_avg_sq = at::zeros(part.model.sizes(), moments);
    if (slot.has_own_master) state_.push_back({"master", &part, slot.master});
    state_.push_back({"exp_avg", &part, slot.exp_avg});
    state_.push_back({"exp_avg_sq", &part, slot.exp_avg_sq});
    slots_.push_back(std::move(slot));
  }
  reset_masters();
}

void Optimizer::reset_masters() {
  data_.wait_for_parameters();
  for (Slot& slot : slots_) {
    if (slot.has_own_master) slot.master.copy_(slot.part->model);
  }
}

OptimizerStep Optimizer::step(double lr, double weight_decay, double loss_scale) {
  OptimizerStep result;
  std::vector<at::Tensor> counted;
  for (const Slot& slot : slots_) {
    if (counts_here(*slot.part, groups_)) counted.push_back(slot.part->grad);
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
  std::vector<ops::AdamwShard> shards;
  shards.reserve(slots_.size());
  for (Slot& slot : slots_) {
    const ParameterOptions& p = slot.part->parameter->options();
    shards.push_back({slot.has_own_master ? slot.part->model : at::Tensor(), slot.master, slot.part->grad, slot.exp_avg,
                      slot.exp_avg_sq, lr * p.lr_mult, weight_decay * p.decay_mult});
  }
  if (!shards.empty()) {
    const at::Tensor grad_scale = at::scalar_tensor(scale, shards[0].master.options().dtype(at::kDouble));
    ops::adamw_(shards, grad_scale, {options_.adam_beta1, options_.adam_beta2, options_.adam_eps, num_steps_},
                kernels_);
  }
  data_.publish();
  return result;
}

std::string Optimizer::find_bad_parameter() const {
  for (const Slot& slot : slots_) {
    if (!at::isfinite(slot.part->grad).all().item<bool>()) return slot.part->parameter->name();
  }
  return "";
}

int64_t Optimizer::num_bytes() const {
  int64_t bytes = 0;
  for (const OptimizerTensor& entry : state_) bytes += static_cast<int64_t>(entry.tensor.nbytes());
  return bytes;
}

}  // namespace megalith
