// On the CPU all shards are cut into pieces of one size for the threads; a GPU takes them whole.
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

void check_shard(const AdamwShard& shard, const at::Tensor& grad_scale) {
  const char* const op = "adamw_";
  const Argument master{"master", shard.master};
  check_dtype(op, master,
              shard.master.defined() && shard.master.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  check_dtype(op, {"grad", shard.grad}, shard.master.scalar_type());
  check_floating(op, {"exp_avg", shard.exp_avg});
  const at::ScalarType moments = shard.exp_avg.scalar_type();
  const bool may_be_narrow = shard.master.scalar_type() == at::kFloat && moments == at::kBFloat16;
  check_dtype(op, {"exp_avg", shard.exp_avg}, may_be_narrow ? at::kBFloat16 : shard.master.scalar_type());
  check_dtype(op, {"exp_avg_sq", shard.exp_avg_sq}, moments);
  if (shard.model.defined()) {
    check_floating(op, {"model", shard.model});
    if (shard.master.scalar_type() == at::kDouble || shard.model.scalar_type() == at::kDouble) {
      check_dtype(op, {"model", shard.model}, shard.master.scalar_type());
    }
  }
  for (const Argument& argument : {Argument{"model", shard.model}, master, Argument{"grad", shard.grad},
                                   Argument{"exp_avg", shard.exp_avg}, Argument{"exp_avg_sq", shard.exp_avg_sq}}) {
    if (!argument.tensor.defined()) continue;
    check_contiguous(op, argument);
    check_devices(op, {master, argument});
    if (argument.tensor.numel() != shard.master.numel()) {
      throw UserError(fmt::format("adamw_: {} has {} elements, but master has {}", argument.name,
                                  argument.tensor.numel(), shard.master.numel()));
    }
  }
  check_devices(op, {master, {"grad_scale", grad_scale}});
}

// The tensors seen as one run of elements each, so that shapes need not agree.
AdamwShard flat(const AdamwShard& shard) {
  AdamwShard result = shard;
  for (at::Tensor AdamwShard::*tensor :
       {&AdamwShard::model, &AdamwShard::master, &AdamwShard::grad, &AdamwShard::exp_avg, &AdamwShard::exp_avg_sq}) {
    if ((shard.*tensor).defined()) result.*tensor = (shard.*tensor).view({-1});
  }
  return result;
}

AdamwPiece piece_of(const AdamwShard& shard, int64_t first, int64_t count) {
  const auto at_element = [&](const at::Tensor& tensor) {
    return static_cast<char*>(tensor.mutable_data_ptr()) + first * static_cast<int64_t>(tensor.element_size());
  };
  const bool has_copy = shard.model.defined();
  return {.model_dtype = to_dtype((has_copy ? shard.model : shard.master).scalar_type()),
          .moment_dtype = to_dtype(shard.exp_avg.scalar_type()),
          .is_double = shard.master.scalar_type() == at::kDouble,
          .count = count,
          .model = has_copy ? at_element(shard.model) : nullptr,
          .master = at_element(shard.master),
          .grad = at_element(shard.grad),
          .exp_avg = at_element(shard.exp_avg),
          .exp_avg_sq = at_element(shard.exp_avg_sq),
          .lr = shard.lr,
          .weight_decay = shard.weight_decay};
}

constexpr int64_t kAdamwPieceElements = 1 << 16;

// To read a number on the CPU is no wait.
void adamw_on_cpu(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
                  const AdamwDecision& decision) {
  if (decision.is_made.defined() && !decision.is_made.item<bool>()) return;
  const auto step = decision.step.defined() ? decision.step.item<double>() : static_cast<double>(options.step);
  std::vector<AdamwPiece> pieces;
  for (const AdamwShard& shard : shards) {
    for (int64_t first = 0; first < shard.master.numel(); first += kAdamwPieceElements) {
      pieces.push_back(piece_of(shard, first, std::min(kAdamwPieceElements, shard.master.numel() - first)));
    }
  }
  MEGALITH_CPU_KERNEL(adamw)
  (pieces.data(), static_cast<int64_t>(pieces.size()),
   {.grad_scale = grad_scale.item<double>(),
    .beta1 = options.beta1,
    .beta2 = options.beta2,
    .eps = options.eps,
    .correction1 = 1 - std::pow(options.beta1, step),
    .correction2 = 1 - std::pow(options.beta2, step)});
}

constexpr AdamwTable kAdamwCpu{.step = adamw_on_cpu};
// Tensors without storage have nothing to update.
constexpr AdamwTable kAdamwMeta{
    .step = [](const at::Tensor&, const std::vector<AdamwShard>&, const AdamwOptions&, const AdamwDecision&) {}};

#ifdef MEGALITH_GPU_KERNELS
void adamw_on_gpu(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
                  const AdamwDecision& decision) {
  if (shards.empty()) return;
  std::vector<AdamwPiece> whole;
  for (const AdamwShard& shard : shards) whole.push_back(piece_of(shard, 0, shard.master.numel()));
  const at::Tensor scratch = at::empty({3}, grad_scale.options().dtype(at::kDouble));
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
