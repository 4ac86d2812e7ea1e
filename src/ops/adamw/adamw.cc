// Interface of adamw_: checks the shards, then calls the dispatcher or the reference.
#include "ops/adamw/adamw.h"

#include <ATen/core/grad_mode.h>

#include "core/error.h"
#include "ops/adamw/reference.h"
#include "ops/arguments.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def(
      "adamw_(Tensor(a!)[] model, Tensor(b!)[] master, Tensor[] grad, Tensor(c!)[] exp_avg, Tensor(d!)[] exp_avg_sq, "
      "float[] lr, float[] weight_decay, Tensor grad_scale, float beta1, float beta2, float eps, int step) -> ()");
}

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
at::Tensor flat(const at::Tensor& tensor) { return tensor.view({-1}); }

}  // namespace

void adamw_(const std::vector<AdamwShard>& shards, const at::Tensor& grad_scale, const AdamwOptions& options,
            Kernels kernels) {
  at::NoGradGuard no_grad;
  check_shape("adamw_", {"grad_scale", grad_scale}, {});
  check_dtype("adamw_", {"grad_scale", grad_scale}, grad_scale.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (options.step < 1) throw UserError(fmt::format("adamw_: step is {}, but is counted from 1", options.step));
  std::vector<at::Tensor> model, master, grad, exp_avg, exp_avg_sq;
  std::vector<double> lr, weight_decay;
  for (const AdamwShard& shard : shards) {
    check_shard(shard, grad_scale);
    master.push_back(flat(shard.master));
    model.push_back(shard.model.defined() ? flat(shard.model) : master.back());
    grad.push_back(flat(shard.grad));
    exp_avg.push_back(flat(shard.exp_avg));
    exp_avg_sq.push_back(flat(shard.exp_avg_sq));
    lr.push_back(shard.lr);
    weight_decay.push_back(shard.weight_decay);
  }
  if (kernels == Kernels::kReference) {
    return reference::adamw_(model, master, grad, exp_avg, exp_avg_sq, lr, weight_decay, grad_scale, options.beta1,
                             options.beta2, options.eps, options.step);
  }
  static const auto op =
      find_op<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::ArrayRef<double>,
                   at::ArrayRef<double>, const at::Tensor&, double, double, double, int64_t)>("megalith::adamw_");
  op.call(model, master, grad, exp_avg, exp_avg_sq, lr, weight_decay, grad_scale, options.beta1, options.beta2,
          options.eps, options.step);
}

}  // namespace megalith::ops
