#include "optim/shared_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "optim/state_layout.h"

namespace megalith {

SharedSums::SharedSums(const DataParallel& data, const Groups& groups,
                       const std::function<bool(const Parameter&)>& takes) {
  const auto add = [&](const Parameter& parameter, Group* shard) {
    if (!takes(parameter)) return;
    const auto axis = slice_axis(parameter);
    members_.push_back({&parameter, shard, axis ? groups.of(*axis).get() : nullptr});
  };
  for (const ParameterRuns& runs : data.runs()) add(*runs.parameter, runs.group);
  if (!data.runs().empty()) return;
  for (const OwnedPart& part : data.parts()) add(*part.parameter, nullptr);
}

void SharedSums::reduce(const std::vector<std::vector<at::Tensor>>& values, ReduceOp op,
                        std::string_view label) const {
  for (Group* const Member::*of : {&Member::shard, &Member::slices}) {
    std::vector<std::pair<Group*, std::vector<at::Tensor>>> by_group;  // in order of first appearance, as on all ranks
    for (size_t i = 0; i < members_.size(); ++i) {
      Group* const group = members_[i].*of;
      if (group == nullptr || group->size() == 1) continue;
      auto found = std::find_if(by_group.begin(), by_group.end(), [&](const auto& one) { return one.first == group; });
      if (found == by_group.end()) found = by_group.insert(found, {group, {}});
      found->second.insert(found->second.end(), values[i].begin(), values[i].end());
    }
    for (const auto& [group, tensors] : by_group) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
      const at::Tensor all = at::cat(flat);
      group->all_reduce(all, op, label).wait();
      int64_t next = 0;
      for (const at::Tensor& tensor : tensors) {
        tensor.copy_(all.narrow(0, next, tensor.numel()).view(tensor.sizes()));
        next += tensor.numel();
      }
    }
  }
}

}  // namespace megalith
