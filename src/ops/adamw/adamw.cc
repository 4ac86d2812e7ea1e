// The CPU cuts shards into pieces for its threads; a GPU takes them whole.
#include "ops/adamw/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/adamw/kernel.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

// Gives the shard's sizes and device.
Argument weight_of(const AdamwShard& shard) {
  return shard.master.defined() ? Argument{"master", shard.master} : Argument{"model", shard.model};
}

void check_whole_master(const char* op, const AdamwShard& shard) {
  const bool is_double = shard.master.scalar_type() == at::kDouble;
  check_dtype(op, {"master", shard.master}, is_double ? at::kDouble : at::kFloat);
  if (!shard.model.defined()) return;
  check_floating(op, {"model", shard.model});
  if (is_double || shard.model.scalar_type() == at::kDouble) {
    check_dtype(op, {"model", shard.model}, shard.master.scalar_type());
  }
}

void check_narrow_master(const char* op, const AdamwShard& shard) {
  check_dtype(op, {"model", shard.model}, at::kBFloat16);
  if (shard.remainder.defined()) check_dtype(op, {"remainder", shard.remainder}, at::kShort);
}

void check_drawn(const char* op, const AdamwShard& shard) {
  const bool has_narrow_weight = !shard.master.defined() && !shard.remainder.defined();
  if (!has_narrow_weight && shard.exp_avg.scalar_type() != at::kBFloat16) {
    throw UserError(fmt::format("{}: rounding at random of a shard that keeps nothing in bfloat16", op));
  }
  if (shard.drawn->columns < 1) throw UserError(fmt::format("{}: {} columns in a drawn run", op, shard.drawn->columns));
}

void check_shard(const AdamwShard& shard, const at::Tensor& grad_scale) {
  const char* const op = "adamw_";
  if (shard.master.defined() && shard.remainder.defined()) {
    throw UserError(fmt::format("{}: a shard has a master, and a remainder in its place", op));
  }
  if (shard.master.defined()) {
    check_whole_master(op, shard);
  } else {
    check_narrow_master(op, shard);
  }
  const at::ScalarType wide = shard.master.defined() ? shard.master.scalar_type() : at::kFloat;
  const bool has_narrow_grad = wide == at::kFloat && shard.grad.scalar_type() == at::kBFloat16;
  check_dtype(op, {"grad", shard.grad}, has_narrow_grad ? at::kBFloat16 : wide);
  check_floating(op, {"exp_avg", shard.exp_avg});
  const at::ScalarType moments = shard.exp_avg.scalar_type();
  check_dtype(op, {"exp_avg", shard.exp_avg}, wide == at::kFloat && moments == at::kBFloat16 ? at::kBFloat16 : wide);
  check_dtype(op, {"exp_avg_sq", shard.exp_avg_sq}, moments);
  const Argument weight = weight_of(shard);
  for (const Argument& argument :
       {Argument{"model", shard.model}, Argument{"master", shard.master}, Argument{"remainder", shard.remainder},
        Argument{"grad", shard.grad}, Argument{"exp_avg", shard.exp_avg}, Argument{"exp_avg_sq", shard.exp_avg_sq}}) {
    if (!argument.tensor.defined()) continue;
    check_contiguous(op, argument);
    check_devices(op, {weight, argument});
    if (argument.tensor.numel() != weight.tensor.numel()) {
      throw UserError(fmt::format("adamw_: {} has {} elements, but {} has {}", argument.name, argument.tensor.numel(),
                                  weight.name, weight.tensor.numel()));
    }
  }
  if (shard.drawn) check_drawn(op, shard);
  check_devices(op, {weight, {"grad_scale", grad_scale}});
}

AdamwShard flat(const AdamwShard& shard) {
  AdamwShard result = shard;
  for (at::Tensor AdamwShard::*tensor : {&AdamwShard::model, &AdamwShard::master, &AdamwShard::remainder,
                                         &AdamwShard::grad, &AdamwShard::exp_avg, &AdamwShard::exp_avg_sq}) {
    if ((shard.*tensor).defined()) result.*tensor = (shard.*tensor).view({-1});
  }
  return result;
}

AdamwPiece piece_of(const AdamwShard& shard, int64_t first, int64_t count) {
  const auto at_element = [&](const at::Tensor& tensor) -> void* {
    if (!tensor.defined()) return nullptr;
    return static_cast<char*>(tensor.mutable_data_ptr()) + first * static_cast<int64_t>(tensor.element_size());
  };
  const bool is_whole = shard.master.defined();
  return {.model_dtype = to_dtype((shard.model.defined() ? shard.model : shard.master).scalar_type()),
          .moment_dtype = to_dtype(shard.exp_avg.scalar_type()),
          .is_double = shard.grad.scalar_type() == at::kDouble,
          .has_narrow_grad = shard.grad.scalar_type() == at::kBFloat16,
          .count = count,
          .model = at_element(shard.model),
          .master = at_element(is_whole ? shard.master : shard.remainder),
          .grad = at_element(shard.grad),
          .exp_avg = at_element(shard.exp_avg),
          .exp_avg_sq = at_element(shard.exp_avg_sq),
          .lr = shard.lr,
          .weight_decay = shard.weight_decay,
          .master_form = is_whole                    ? MasterForm::kWhole
                         : shard.remainder.defined() ? MasterForm::kRemainder
                                                     : MasterForm::kNone,
          .is_stochastic = shard.drawn.has_value(),
          .drawn = shard.drawn.value_or(DrawnRun{}),
          .first = first};
}

constexpr int64_t kAdamwPieceElements = 1 << 16;

void adamw_on_cpu(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
                  const AdamwDecision& decision) {
  if (decision.is_made.defined() && !decision.is_made.item<bool>()) return;
  const auto step = decision.step.defined() ? decision.step.item<double>() : static_cast<double>(options.step);
  std::vector<AdamwPiece> pieces;
  for (const AdamwShard& shard : shards) {
    for (int64_t first = 0; first < shard.grad.numel(); first += kAdamwPieceElements) {
      pieces.push_back(piece_of(shard, first, std::min(kAdamwPieceElements, shard.grad.numel() - first)));
    }
  }
  MEGALITH_CPU_KERNEL(adamw)
  (pieces.data(), static_cast<int64_t>(pieces.size()),
   {.grad_scale = grad_scale.item<double>(),
    .beta1 = options.beta1,
    .beta2 = options.beta2,
    .eps = options.eps,
    .correction1 = 1 - std::pow(options.beta1, step),
    .correction2 = 1 - std::pow(options.beta2, step),
    .number = static_cast<uint64_t>(step)});
}

constexpr AdamwTable kAdamwCpu{.step = adamw_on_cpu};
constexpr AdamwTable kAdamwMeta{
    .step = [](const at::Tensor&, const std::vector<AdamwShard>&, const AdamwOptions&, const AdamwDecision&) {}};

#ifdef MEGALITH_GPU_KERNELS
void adamw_on_gpu(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
                  const AdamwDecision& decision) {
  if (shards.empty()) return;
  std::vector<AdamwPiece> whole;
  for (const AdamwShard& shard : shards) whole.push_back(piece_of(shard, 0, shard.grad.numel()));
  const at::Tensor scratch = at::empty({gpu::kAdamwScratch}, grad_scale.options().dtype(at::kDouble));
  gpu::on_stream_of<&gpu::adamw, gpu::AdamwStep>(
      {.shards = whole.data(),
       .num_shards = static_cast<int64_t>(whole.size()),
       .beta1 = options.beta1,
       .beta2 = options.beta2,
       .eps = options.eps,
       .grad_scale = grad_scale.const_data_ptr(),
       .scale_is_double = grad_scale.scalar_type() == at::kDouble,
       .step = decision.step.defined() ? decision.step.const_data_ptr<double>() : nullptr,
       .is_made = decision.is_made.defined() ? decision.is_made.const_data_ptr<bool>() : nullptr,
       .host_step = static_cast<double>(options.step),
       .scratch = scratch.mutable_data_ptr<double>()},
      grad_scale);
}
constexpr AdamwTable kAdamwGpu{.step = adamw_on_gpu};
#endif

}  // namespace

constexpr Operator<AdamwTable> kAdamw{.name = "adamw",
                                      .reference = &kAdamwReference,
                                      .cpu = &kAdamwCpu,
                                      .meta = &kAdamwMeta,
#ifdef MEGALITH_GPU_KERNELS
                                      .gpu = &kAdamwGpu
#endif
};

void adamw_(const std::vector<AdamwShard>& shards, const at::Tensor& grad_scale, const AdamwOptions& options,
            Kernels kernels, const AdamwDecision& decision) {
  at::NoGradGuard no_grad;
  check_shape("adamw_", {"grad_scale", grad_scale}, {});
  check_dtype("adamw_", {"grad_scale", grad_scale}, grad_scale.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (options.step < 1) throw UserError(fmt::format("adamw_: step is {}, but is counted from 1", options.step));
  const Argument step{"step", decision.step}, is_made{"is_made", decision.is_made};
  if (decision.step.defined()) {
    check_shape("adamw_", step, {});
    check_dtype("adamw_", step, at::kDouble);
    check_devices("adamw_", {{"grad_scale", grad_scale}, step});
  }
  if (decision.is_made.defined()) {
    check_shape("adamw_", is_made, {});
    check_dtype("adamw_", is_made, at::kBool);
    check_devices("adamw_", {{"grad_scale", grad_scale}, is_made});
  }
  std::vector<AdamwShard> flat_shards;
  for (const AdamwShard& shard : shards) {
    check_shard(shard, grad_scale);
    flat_shards.push_back(flat(shard));
  }
  kAdamw.run("adamw_", &AdamwTable::step, kernels, grad_scale, flat_shards, options, decision);
}

}  // namespace megalith::ops
