#include "ops/adamw/narrow_master.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace megalith::ops {
namespace {

constexpr int64_t kUnit = 1 << 16;  // a bf16's last place, in float bits

}  // namespace

at::Tensor join_master(const at::Tensor& weight, const at::Tensor& remainder, const at::Tensor& exp_avg_sq) {
  const at::NoGradGuard no_grad;
  const at::Tensor bits = weight.to(at::kFloat).view(at::kInt) + remainder;
  return bits.add_(at::signbit(exp_avg_sq), kUnit).view(at::kFloat);
}

void split_master(const at::Tensor& master, const at::Tensor& weight, const at::Tensor& remainder,
                  const at::Tensor& exp_avg_sq) {
  const at::NoGradGuard no_grad;
  const at::Tensor nearest = master.to(at::kBFloat16);
  at::Tensor rest = master.contiguous().view(at::kInt) - nearest.to(at::kFloat).contiguous().view(at::kInt);
  rest.masked_fill_(at::isnan(master), 0);
  const at::Tensor is_upper_tie = rest == kUnit / 2;
  weight.copy_(nearest);
  remainder.copy_(at::where(is_upper_tie, -kUnit / 2, rest));
  exp_avg_sq.copy_(at::where(is_upper_tie, -exp_avg_sq.abs(), exp_avg_sq.abs()));
}

}  // namespace megalith::ops
