#include "checkpoint/replica_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "checkpoint/exchange.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace {

int64_t checksum_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).contiguous();
  return static_cast<int64_t>(
      checksum64(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes())));
}

struct Replicas {
  Axis axis;
  std::vector<int> places;  // along pp: Placement::pipeline_ranks
  Groups::Pointer group;
};

std::vector<Replicas> replicas_of(std::span<const CheckpointTensor> tensors, const Groups& groups) {
  std::vector<Replicas> all;
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis != Axis::kPp) all.push_back({axis, {}, groups.of(axis)});
  }
  std::set<std::vector<int>> holders;
  for (const CheckpointTensor& tensor : tensors) {
    if (tensor.replica_axes.contains(Axis::kPp)) holders.insert(tensor.placement->pipeline_ranks);
  }
  for (const std::vector<int>& places : holders) all.push_back({Axis::kPp, places, groups.on_stages(places)});
  std::erase_if(all, [](const Replicas& one) { return !one.group || one.group->size() == 1; });
  return all;
}

}  // namespace

std::string ReplicaDifference::text() const {
  return fmt::format("{} {} differs between rank {} and rank {} ({})", key, tensor, first_rank, other_rank,
                     name_of(axis));
}

std::optional<ReplicaDifference> find_replica_difference(std::span<const CheckpointTensor> tensors,
                                                         const Groups& groups) {
  std::vector<int64_t> checksums;
  for (const CheckpointTensor& tensor : tensors) checksums.push_back(checksum_of(tensor.local));
  std::optional<ReplicaDifference> found;
  size_t found_at = tensors.size();
  for (const Replicas& replicas : replicas_of(tensors, groups)) {
    const auto& [axis, places, group] = replicas;
    std::vector<size_t> shared;
    std::vector<int64_t> mine;
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].replica_axes.contains(axis)) continue;
      if (axis == Axis::kPp && tensors[t].placement->pipeline_ranks != places) continue;
      shared.push_back(t);
      mine.push_back(checksums[t]);
    }
    if (shared.empty()) continue;
    const at::Tensor all =
        group->gathered(at::tensor(mine, at::kLong), "checksums of replicas").view({group->size(), -1});
    for (int other = 1; other < group->size(); ++other) {
      const at::Tensor differs = all[other].ne(all[0]).nonzero();
      if (differs.size(0) == 0) continue;
      const size_t t = shared[static_cast<size_t>(differs[0][0].item<int64_t>())];
      if (t >= found_at) continue;
      found_at = t;
      const CheckpointTensor& tensor = tensors[t];
      found = {.key = tensor.key,
               .tensor = tensor.placement->pieces.empty() ? "(padding)" : tensor.placement->pieces[0].name,
               .axis = axis,
               .first_rank = group->ranks()[0],
               .other_rank = group->ranks()[static_cast<size_t>(other)]};
    }
  }
  constexpr std::string_view kDifferences = "differences of replicas";
  // All ranks must learn of it, or some would go on.
  Json report;
  if (found) {
    report = {{"at", found_at},
              {"key", found->key},
              {"tensor", found->tensor},
              {"axis", static_cast<int>(found->axis)},
              {"first", found->first_rank},
              {"other", found->other_rank}};
  }
  std::optional<Json> first;
  int64_t first_at = 0;
  for (const std::string& text : gather_texts(*groups.world, dump_json(report), kDifferences)) {
    const Json one = parse_json(text, kDifferences);
    if (one.is_null()) continue;
    const auto at = json_get<int64_t>(one, "at", kDifferences);
    if (first && at >= first_at) continue;
    first = one;
    first_at = at;
  }
  if (!first) return std::nullopt;
  return ReplicaDifference{.key = json_get<std::string>(*first, "key", kDifferences),
                           .tensor = json_get<std::string>(*first, "tensor", kDifferences),
                           .axis = static_cast<Axis>(json_get<int>(*first, "axis", kDifferences)),
                           .first_rank = json_get<int>(*first, "first", kDifferences),
                           .other_rank = json_get<int>(*first, "other", kDifferences)};
}

}  // namespace megalith
