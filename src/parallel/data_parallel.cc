#include "parallel/data_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

namespace megalith {

FlatRange ParameterRuns::of(int rank) const {
  const int64_t count = parameter->placement().num_local_elements(), begin = first + rank * size;
  return {std::clamp(begin, int64_t{0}, count), std::clamp(begin + size, int64_t{0}, count)};
}

std::vector<OwnedPart> whole_parameters(const std::vector<Parameter*>& params) {
  std::vector<OwnedPart> parts;
  for (Parameter* param : params) {
    parts.push_back({.parameter = param,
                     .range = std::nullopt,
                     .model = param->is_packed() ? param->value() : param->data(),
                     .grad = {},
                     .replica_axes = param->placement().replica_axes});
  }
  return parts;
}

namespace {

bool comes_first(const OwnedPart* a, const OwnedPart* b) {
  const auto place = [](const OwnedPart* part) {
    return std::pair(std::string_view(part->parameter->name()), part->range ? part->range->begin : 0);
  };
  return place(a) < place(b);
}

// places  along pp: only parameters on these pipeline ranks
void sum_over(Group& group, Axis axis, const std::vector<OwnedPart>& parts, std::string_view label,
              const std::vector<int>& places = {}) {
  if (group.size() == 1) return;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    std::vector<const OwnedPart*> summed;
    for (const OwnedPart& part : parts) {
      const Placement& placement = part.parameter->placement();
      if (placement.partial_axes.contains(axis) && (axis != Axis::kPp || placement.pipeline_ranks == places) &&
          part.grad.scalar_type() == dtype) {
        summed.push_back(&part);
      }
    }
    if (summed.empty()) continue;
    // Stages register shared parameters in different orders.
    if (axis == Axis::kPp) std::sort(summed.begin(), summed.end(), comes_first);
    std::vector<at::Tensor> flat;
    for (const OwnedPart* part : summed) flat.push_back(part->grad.view({-1}));
    at::Tensor together = at::cat(flat);
    if (together.is_cpu()) together = together.to(group.device());  // gradients in a device run's host memory
    group.all_reduce(together, ReduceOp::kSum, label).wait();
    int64_t offset = 0;
    for (at::Tensor& one : flat) {
      one.copy_(together.narrow(0, offset, one.numel()));
      offset += one.numel();
    }
  }
}

}  // namespace

void sum_over_model_ranks(const std::vector<OwnedPart>& parts, const Groups& groups) {
  sum_over(*groups.tp, Axis::kTp, parts, "gradients partial over tp");
  sum_over(*groups.etp, Axis::kEtp, parts, "gradients partial over etp");
  // One common order, or sets would deadlock.
  std::set<std::vector<int>> holders;
  for (const OwnedPart& part : parts) {
    const Placement& placement = part.parameter->placement();
    if (placement.partial_axes.contains(Axis::kPp)) holders.insert(placement.pipeline_ranks);
  }
  for (const std::vector<int>& places : holders) {
    if (const Groups::Pointer group = groups.on_stages(places)) {
      sum_over(*group, Axis::kPp, parts, "gradients of the tied embedding", places);
    }
  }
}

}  // namespace megalith
