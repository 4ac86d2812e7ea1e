// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/adamw/adamw.h"
#include "ops/adamw/narrow_master.h"
#include "ops/philox_words.h"

namespace megalith::ops {
namespace reference {
namespace {

constexpr int64_t kHalfWord = 0xFFFF;

// Random bits, as int64: 16 per tensor, of an element's two Philox words.
struct Draws {
  at::Tensor model, exp_avg, exp_avg_sq;
};

Draws draw(const AdamwShard& shard, const at::Tensor& step) {
  if (!shard.drawn) return {};
  const DrawnRun& run = *shard.drawn;
  const at::Tensor i = at::arange(shard.grad.numel(), step.options().dtype(at::kLong));
  const at::Tensor row = i.floor_divide(run.columns), column = i - row * run.columns;
  const at::Tensor element = row * run.row_stride + column * run.column_stride + run.first;
  const at::Tensor block = element.bitwise_right_shift(1), lane = element.bitwise_and(1) * 2, high = step.to(at::kLong);
  const at::Tensor first = philox_words(run.key, block, high, lane);
  const at::Tensor second = philox_words(run.key, block, high, lane + 1);
  return {first.bitwise_and(kHalfWord), first.bitwise_right_shift(16), second.bitwise_and(kHalfWord)};
}

// bf16 with random bits: up if they overflow with the 16 lost ones.
at::Tensor rounded_to(at::ScalarType dtype, const at::Tensor& value, const at::Tensor& bits) {
  if (dtype != at::kBFloat16 || !bits.defined()) return value.to(dtype);
  const at::Tensor sum = value.view(at::kInt).add(bits.to(at::kInt)).bitwise_and_(~kHalfWord).view(at::kFloat);
  return at::where(at::isnan(value), value, sum).to(at::kBFloat16);
}

at::Tensor master_of(const AdamwShard& shard) {
  if (shard.master.defined()) return shard.master;
  if (shard.remainder.defined()) return join_master(shard.model, shard.remainder, shard.exp_avg_sq);
  return shard.model.to(at::kFloat);
}

// Copies replace the originals if decided; the host reads nothing. Scalars are double until they meet a tensor.
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
    const at::ScalarType wide = shard.grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::ScalarType moments = shard.exp_avg.scalar_type();
    const Draws draws = draw(shard, step);
    const at::Tensor g = shard.grad.to(wide) * grad_scale.to(wide);
    const at::Tensor m = at::lerp(shard.exp_avg.to(wide), g, 1 - beta1);
    const at::Tensor v = shard.exp_avg_sq.to(wide).abs() * beta2 + g.square() * (1 - beta2);
    const at::Tensor denominator = v.sqrt() / root2 + eps;
    const at::Tensor step_size = at::full({}, -shard.lr, doubles) / correction1;
    const at::Tensor before = master_of(shard);
    const at::Tensor w = (before * (1 - shard.lr * shard.weight_decay)).add_((m * step_size).div_(denominator));
    const at::Tensor narrow_v = rounded_to(moments, v, draws.exp_avg_sq);
    replace(shard.exp_avg, rounded_to(moments, m, draws.exp_avg));
    if (shard.remainder.defined()) {
      const at::Tensor weight = at::empty_like(shard.model), remainder = at::empty_like(shard.remainder);
      split_master(w, weight, remainder, narrow_v);
      replace(shard.model, weight);
      replace(shard.remainder, remainder);
    } else if (shard.master.defined()) {
      replace(shard.master, w);
      if (shard.model.defined()) shard.model.copy_(shard.master);
    } else {
      replace(shard.model, rounded_to(at::kBFloat16, w, draws.model));
    }
    replace(shard.exp_avg_sq, narrow_v);
  }
}

}  // namespace
}  // namespace reference

constexpr AdamwTable kAdamwReference{.step = reference::adamw_};

}  // namespace megalith::ops
