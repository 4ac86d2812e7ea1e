// See data_parallel.h.
#include "parallel/data_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace megalith {

std::vector<OwnedPart> whole_parameters(const std::vector<Parameter*>& params) {
  std::vector<OwnedPart> parts;
  for (Parameter* param : params) {
    parts.push_back({.parameter = param,
                     .range = std::nullopt,
                     .model = param->data(),
                     .grad = {},
                     .replica_axes = param->placement().replica_axes});
  }
  return parts;
}

void sum_over_tensor_ranks(const std::vector<OwnedPart>& parts, const Groups& groups) {
  if (groups.tp->size() == 1) return;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> flat;
    for (const OwnedPart& part : parts) {
      if (part.parameter->placement().partial_axes.contains(Axis::kTp) && part.grad.scalar_type() == dtype) {
        flat.push_back(part.grad.view({-1}));
      }
    }
    if (flat.empty()) continue;
    const at::Tensor together = at::cat(flat);
    groups.tp->all_reduce(together, ReduceOp::kSum, "gradients partial over tp").wait();
    int64_t offset = 0;
    for (at::Tensor& one : flat) {
      one.copy_(together.narrow(0, offset, one.numel()));
      offset += one.numel();
    }
  }
}

}  // namespace megalith
