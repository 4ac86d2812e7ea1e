// Megatron-core's torch_dist: whole tensors under names of the model, and under "optimizer.state.KEY.NAME" those of the
// optimizer, in every format of the distributed optimizer that can change its layout (fully_reshardable and, before
// 0.15, fully_sharded_model_space). Other formats are read by megatron_buckets.h. What is the same on all ranks is in
// common.pt. Megatron-FSDP's own form, without that file, is fsdp_dtensor.h.
// Source: megatron-core, core/optimizer/distrib_optimizer.py, core/optimizer/optimizer.py.
#include <fmt/format.h>

#include "foreign/foreign_source.h"
#include "foreign/fsdp_dtensor.h"
#include "foreign/megatron_buckets.h"
#include "foreign/megatron_names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStatePrefix = "optimizer.state.";

constexpr std::string_view kFirstRank = "optimizer.distributed.dp_group_idx_0.";

struct TensorName {
  std::string key, parameter;
};

// "chained_0.optimizer.state.exp_avg.decoder.…" → exp_avg of decoder.….
std::optional<TensorName> split_state(std::string_view name) {
  const size_t at = name.find(kStatePrefix);
  if (at == std::string_view::npos || (at > 0 && !name.starts_with("chained_"))) return std::nullopt;
  const std::string_view rest = name.substr(at + kStatePrefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return TensorName{std::string(rest.substr(0, dot)), std::string(rest.substr(dot + 1))};
}

bool is_torch_dist(const fs::path& folder) {
  return is_dcp_folder(folder) && (fs::exists(folder / "common.pt") || is_fsdp_dtensor(folder));
}

ForeignRecord record_torch_dist(const fs::path& folder) {
  if (!fs::exists(folder / "common.pt")) return record_fsdp_dtensor(folder);
  const TorchArchive common(folder / "common.pt");
  ForeignRecord record = megatron_record(common);
  // Formats by buckets keep it with each optimizer of each rank: the first of them.
  const DcpFolder dcp(folder);
  std::vector<std::string> names;
  for (const auto& [name, shape] : dcp.tensors()) names.push_back(name);
  read_megatron_network(names, record);
  for (const std::string& name : dcp.objects()) {
    const size_t at = name.find(kFirstRank);
    if (at == std::string::npos || (at > 0 && !name.starts_with("chained_0."))) continue;
    const std::string_view rest = std::string_view(name).substr(at + kFirstRank.size());
    if (!rest.starts_with("optimizer/") && !rest.starts_with("grad_scaler/")) continue;
    const auto object = dcp.object(name);
    if (rest.starts_with("optimizer/")) {
      read_updates(*object, object->root(), record);
    } else {
      read_megatron_scaler(*object, sharded_object(*object), record);
    }
  }
  return record;
}

void read_torch_dist(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  const DcpFolder dcp(folder);
  if (!fs::exists(folder / "common.pt")) return read_fsdp_dtensor(dcp, model, tensors);
  std::string in_buckets;
  for (const std::string& name : dcp.objects()) {
    if (is_in_buckets(name)) {
      in_buckets = name;
      continue;
    }
    const std::string_view why = unused_in_megatron(name);
    leave_over(tensors, why.empty() ? "an object that is no tensor" : why, name);
  }
  for (const auto& [name, shape] : dcp.tensors()) {
    if (is_in_buckets(name)) continue;
    const auto state = split_state(name);
    const std::string key = state ? state_key(state->key) : std::string(kModelKey);
    if (key.empty()) {
      leave_over(tensors, fmt::format("optimizer state '{}', which no optimizer here keeps", state->key), name);
      continue;
    }
    read_megatron_tensor(dcp.tensor(name), state ? state->parameter : name, key, model, tensors);
  }
  if (in_buckets.empty()) return;
  try {
    read_megatron_buckets(dcp, TorchArchive(folder / "common.pt"), model, tensors);
  } catch (const UserError& error) {
    // The weights can be taken without them.
    leave_over(tensors, error.message(), in_buckets);
  }
}

}  // namespace

const ForeignSource kTorchDist = {.kind = ForeignKind::kTorchDist,
                                  .name = "torch_dist of Megatron-core, or its fsdp_dtensor",
                                  .is_here = is_torch_dist,
                                  .record = record_torch_dist,
                                  .read = read_torch_dist};

}  // namespace megalith
