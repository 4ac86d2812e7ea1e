#include "foreign/fsdp_dtensor.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "foreign/foreign_source.h"
#include "foreign/megatron_names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kWrappedModel = "model.module.", kWrappedStates = "optimizer.state.module.";

// A parameter's name in the model that is wrapped, the half of a gated matrix, and the state's name.
struct WrappedName {
  std::string parameter, state;
  std::optional<int64_t> half;
};

std::optional<WrappedName> wrapped_name(std::string_view name) {
  WrappedName found;
  if (name.starts_with(kWrappedStates)) {
    name.remove_prefix(kWrappedStates.size());
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    found.state = name.substr(dot + 1);
    name = name.substr(0, dot);
  } else if (name.starts_with(kWrappedModel)) {
    name.remove_prefix(kWrappedModel.size());
  } else {
    return std::nullopt;
  }
  for (constexpr std::string_view kModule = "module."; name.starts_with(kModule);) name.remove_prefix(kModule.size());
  const bool is_gate = name.ends_with("_w"), is_up = name.ends_with("_v");
  if ((is_gate || is_up) && name.find("linear_fc1.") != std::string_view::npos) {
    found.half = is_up ? 1 : 0;
    name.remove_suffix(2);
  }
  found.parameter = name;
  return found;
}

std::optional<double> number_in(const DcpFolder& dcp, const std::string& name) {
  if (!dcp.has_object(name)) return std::nullopt;
  const auto object = dcp.object(name);
  return object->number(object->root());
}

}  // namespace

bool is_fsdp_dtensor(const fs::path& folder) {
  if (!is_dcp_folder(folder)) return false;
  const MappedFile metadata(folder / ".metadata");
  return metadata.text().find(kWrappedModel) != std::string_view::npos &&
         metadata.text().find("decoder.layers.") != std::string_view::npos;
}

ForeignRecord record_fsdp_dtensor(const fs::path& folder) {
  const DcpFolder dcp(folder);
  if (!dcp.has_object("args")) {
    throw UserError(fmt::format("{} is fsdp_dtensor of Megatron-FSDP without Megatron-LM's args", folder.string()),
                    "give a checkpoint that Megatron-LM's training wrote, or export the model with Megatron Bridge, "
                    "for --load_hf");
  }
  ForeignRecord record;
  const auto count = [&](const std::string& name, int64_t most) -> std::optional<int64_t> {
    const auto number = number_in(dcp, name);
    if (!number) return std::nullopt;
    return whole_number(*number, 0, most, fmt::format("{}: {}", folder.string(), name));
  };
  record.train.iteration = count("iteration", int64_t{1} << 31).value_or(0);
  record.train.optimizer_step = record.train.iteration;
  const auto args = dcp.object("args");
  read_megatron_args(*args, args->root(), record);
  record.train.numbers["schedule_samples"] = static_cast<double>(
      count("opt_param_scheduler.num_steps", int64_t{1} << 53).value_or(record.train.consumed_train_samples));
  // Equal for all parameters: the optimizer counts by group.
  for (const std::string& name : dcp.objects()) {
    if (!name.starts_with("optimizer.") || !name.ends_with(".step")) continue;
    record.train.optimizer_step = count(name, int64_t{1} << 50).value_or(record.train.iteration);
    break;
  }
  return record;
}

void read_fsdp_dtensor(const DcpFolder& dcp, const CanonicalModel& model, ForeignTensors& tensors) {
  for (const std::string& name : dcp.objects()) {
    const std::string_view why = unused_in_megatron(name);
    leave_over(tensors, why.empty() ? "settings of the run, which options say" : why, name);
  }
  for (const auto& [name, shape] : dcp.tensors()) {
    const auto found = wrapped_name(name);
    if (found && found->state == "step") {
      leave_over(tensors, "counts of updates, read with the run's counters", name);
      continue;
    }
    const std::string key = !found                 ? ""
                            : found->state.empty() ? std::string(kModelKey)
                                                   : state_key(found->state);
    if (key.empty()) {
      leave_over(tensors, found ? fmt::format("optimizer state '{}', which no optimizer here keeps", found->state)
                                : "no parameter of this model",
                 name);
      continue;
    }
    ForeignTensor tensor = dcp.tensor(name);
    if (found->half && !tensor.shape.empty()) {
      for (ForeignTensor::Shard& shard : tensor.shards) shard.box.offset[0] += *found->half * tensor.shape[0];
      tensor.shape[0] *= 2;
    }
    read_megatron_tensor(tensor, found->parameter, key, model, tensors);
  }
}

}  // namespace megalith
