#include "nn/set_losses.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace megalith {

std::vector<LossTerm> set_losses(const at::Tensor& row_sums, const at::Tensor& row_weights, const SetInput& sets) {
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = at::arange(std::ssize(sets.names), sets.ids.options());
  // A product, not index_add: its sums have one order on every device.
  const at::Tensor is_of = sets.ids.unsqueeze(0).eq(numbers.unsqueeze(1)).to(row_sums.scalar_type());
  const at::Tensor sums = (is_of * row_sums.detach()).sum(1), weights = (is_of * row_weights.detach()).sum(1);
  std::vector<LossTerm> terms;
  for (size_t i = 0; i < sets.names.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    terms.push_back({.name = sets.names[i], .sum = sums[place], .weight = weights[place], .objective = {}});
  }
  return terms;
}

}  // namespace megalith
