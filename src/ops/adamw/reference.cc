// The definition of adamw_, in ATen's operators.
#include <ATen/ATen.h>

#include <cmath>

#include "ops/adamw/adamw.h"

namespace megalith::ops {
namespace reference {
namespace {

void adamw_(const at::Tensor& grad_scale, const std::vector<AdamwShard>& shards, const AdamwOptions& options) {
  const auto [beta1, beta2, eps, step] = options;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (const AdamwShard& shard : shards) {
    const at::ScalarType wide = shard.master.scalar_type();
    const at::Tensor g = shard.grad * grad_scale.to(wide);
    const at::Tensor m = at::lerp(shard.exp_avg.to(wide), g, 1 - beta1);
    const at::Tensor v = shard.exp_avg_sq.to(wide) * beta2 + g.square() * (1 - beta2);
    const at::Tensor denominator = v.sqrt() / std::sqrt(correction2) + eps;
    shard.master.mul_(1 - shard.lr * shard.weight_decay).addcdiv_(m, denominator, -shard.lr / correction1);
    shard.exp_avg.copy_(m);
    shard.exp_avg_sq.copy_(v);
    if (shard.model.defined()) shard.model.copy_(shard.master);
  }
}

}  // namespace
}  // namespace reference

constexpr AdamwTable kAdamwReference{.step = reference::adamw_};

}  // namespace megalith::ops
