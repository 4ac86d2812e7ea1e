// Megatron-core's torch_dist: whole tensors under names of the model, and under "optimizer.state.KEY.NAME" those of the
// optimizer, in every format of the distributed optimizer that can change its layout (fully_reshardable and, before
// 0.15, fully_sharded_model_space). What is the same on all ranks is in common.pt.
// Source: megatron-core, core/optimizer/distrib_optimizer.py, core/optimizer/optimizer.py.
#include <fmt/format.h>

#include "foreign/foreign_source.h"
#include "foreign/megatron_names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStatePrefix = "optimizer.state.", kBuckets = "optimizer.distributed.";

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

bool is_torch_dist(const fs::path& folder) { return is_dcp_folder(folder) && fs::exists(folder / "common.pt"); }

ForeignRecord record_torch_dist(const fs::path& folder) {
  const TorchArchive common(folder / "common.pt");
  return megatron_record(common);
}

void read_torch_dist(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  const DcpFolder dcp(folder);
  for (const std::string& name : dcp.objects()) {
    const std::string_view why = unused_in_megatron(name);
    leave_over(tensors, why.empty() ? "an object that is no tensor" : why, name);
  }
  for (const auto& [name, shape] : dcp.tensors()) {
    if (name.find(kBuckets) != std::string::npos) {
      // Buffers of a rank's parameters, in the order of its buckets.
      leave_over(tensors, "optimizer state by buckets (dp_reshardable), which only the layout that saved it can read",
                 name);
      continue;
    }
    const auto state = split_state(name);
    const std::string key = state ? state_key(state->key) : std::string(kModelKey);
    if (key.empty()) {
      leave_over(tensors, fmt::format("optimizer state '{}', which no optimizer here keeps", state->key), name);
      continue;
    }
    read_megatron_tensor(dcp.tensor(name), state ? state->parameter : name, key, model, tensors);
  }
}

}  // namespace

const ForeignSource kTorchDist = {.kind = ForeignKind::kTorchDist,
                                  .name = "torch_dist of Megatron-core",
                                  .is_here = is_torch_dist,
                                  .record = record_torch_dist,
                                  .read = read_torch_dist};

}  // namespace megalith
