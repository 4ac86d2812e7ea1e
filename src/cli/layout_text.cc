#include "cli/layout_text.h"

#include <fmt/ranges.h>

#include "comm/mesh.h"

namespace megalith {

std::string layout_text(const Resolved& resolved, int64_t world_size) {
  const Config& config = resolved.config;
  const Mesh mesh = Mesh::from_options(config.parallel, world_size);
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kPp, Axis::kDp}) {
    if (mesh.size(axis) > 1) add(fmt::format("{} {}", name_of(axis), mesh.size(axis)));
  }
  if (mesh.size(Axis::kDpReplicate) > 1) add(fmt::format("in {} parts", mesh.size(Axis::kDpReplicate)));
  if (mesh.size(Axis::kEp) > 1 || mesh.size(Axis::kEtp) != mesh.size(Axis::kTp)) {
    add(fmt::format("ep {}, etp {}", mesh.size(Axis::kEp), mesh.size(Axis::kEtp)));
  }
  if (config.sequence_parallel && mesh.size(Axis::kTp) > 1) add("sequence_parallel");
  if (mesh.size(Axis::kCp) > 1) add(fmt::format("cp_comm_type {}", fmt::join(config.parallel.cp_comm_type, " ")));
  if (resolved.derived.data_parallel.use_torch_fsdp2) add("use_torch_fsdp2");
  if (resolved.derived.data_parallel.use_distributed_optimizer) add("use_distributed_optimizer");
  if (config.recompute.is_full()) add("full recomputation");
  if (config.recompute.is_selective()) add("selective recomputation");
  return text.empty() ? "one rank" : text;
}

}  // namespace megalith
