// The definition of adamw_, in ATen's operators.
#include <ATen/ATen.h>

#include "ops/adamw/adamw.h"

namespace megalith::ops {
namespace reference {
namespace {

// The step is made on copies: they take the place of what was there only where the decision says so, and so nothing is
// read on the host. Scalars are double until they meet a tensor.
void adamw_(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options,
            const AdamwDecision& decision) {
  const auto [beta1, beta2, eps, host_step] = options;
  const auto doubles = grad_scale.options().dtype(at::kDouble);
  const at::Tensor step =
      decision.step.defined() ? decision.step : at::full({}, static_cast<double>(host_step), doubles);
  const at::Tensor correction1 = 1 - at::pow(beta1, step), root2 = (1 - at::pow(beta2, step)).sqrt();
  const auto replace = [&](const at::Tensor& old, const at::Tensor& value) {
    old.copy_(decision.is_made.defined() ? at::where(decision.is_made, value, old.to(value.scalar_type())) : value);
  };
  for (const AdamwShard& shard : shards) {
    const at::ScalarType wide = shard.master.scalar_type();
    const at::Tensor g = shard.grad * grad_scale.to(wide);
    const at::Tensor m = at::lerp(shard.exp_avg.to(wide), g, 1 - beta1);
    const at::Tensor v = shard.exp_avg_sq.to(wide) * beta2 + g.square() * (1 - beta2);
    const at::Tensor denominator = v.sqrt() / root2 + eps;
    const at::Tensor step_size = at::full({}, -shard.lr, doubles) / correction1;
    replace(shard.master, (shard.master * (1 - shard.lr * shard.weight_decay)).add_((m * step_size).div_(denominator)));
    replace(shard.exp_avg, m);
    replace(shard.exp_avg_sq, v);
    if (shard.model.defined()) shard.model.copy_(shard.master);
  }
}

}  // namespace
}  // namespace reference

constexpr AdamwTable kAdamwReference{.step = reference::adamw_};

}  // namespace megalith::ops
