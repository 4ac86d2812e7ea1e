// torchtitan's folders of torch.distributed.checkpoint: parameters by Meta's names, the optimizer's states under
// "optimizer.state.NAME.exp_avg", in its flattened form and by groups alike. Also such folders of any PyTorch program
// whose parameters have Hugging Face's names, as FSDP in Accelerate writes them.
// Source: torchtitan, components/{checkpoint,optimizer}.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "foreign/foreign_source.h"
#include "foreign/torchtitan_names.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// (heads * d, in) as (heads, d / 2, 2, in): a pair's channels in a dim of their own. Rows that a rank holds are a run.
ForeignTensor by_pairs(const ForeignTensor& tensor, const std::vector<int64_t>& view) {
  const int64_t d = 2 * view[1];
  ForeignTensor paired{.name = tensor.name, .shape = view, .shards = {}};
  for (const ForeignTensor::Shard& shard : tensor.shards) {
    const int64_t first = shard.box.offset[0], count = shard.box.extent[0];
    int64_t row = first;
    for (Box& box : flat_range_boxes({view[0], view[1], 2}, first, first + count)) {
      const int64_t rows = box.num_elements();
      FileTensor stored = sub_tensor(shard.stored, {{row - first, 0}, {rows, shard.box.extent[1]}});
      const int64_t by_row = stored.strides[0], by_column = stored.strides[1];
      box.offset.push_back(shard.box.offset[1]);
      box.extent.push_back(shard.box.extent[1]);
      stored.shape = box.extent;
      stored.strides = {by_row * d, by_row * 2, by_row, by_column};
      paired.shards.push_back({std::move(box), std::move(stored)});
      row += rows;
    }
  }
  return paired;
}

// "optimizer.state.layers.0.attention.wq.weight.exp_avg" → the parameter's name and the state's.
struct StateName {
  std::string parameter, state;
};
std::optional<StateName> split_optimizer_name(std::string_view name) {
  for (const std::string_view prefix : {"optimizer.state.", "optim.state.", "state."}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    const size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    return StateName{std::string(rest.substr(0, dot)), std::string(rest.substr(dot + 1))};
  }
  return std::nullopt;
}

std::string without_model_prefix(std::string_view name, const CanonicalModel& model) {
  constexpr std::string_view kPrefix = "model.";
  if (has_titan_form(model, name) || !name.starts_with(kPrefix)) return std::string(name);
  return std::string(name.substr(kPrefix.size()));
}

// Folders with parameters at the top, or with parts beside one another (Accelerate's FSDP).
std::vector<fs::path> parts_of(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const char* part : {".", "pytorch_model_fsdp_0", "optimizer_0"}) {
    if (is_dcp_folder(folder / part)) parts.push_back(folder / part);
  }
  return parts;
}

bool is_torchtitan(const fs::path& folder) { return !parts_of(folder).empty(); }

std::optional<int64_t> scalar(const DcpFolder& dcp, const std::string& name) {
  if (dcp.tensors().contains(name)) {
    const ForeignTensor tensor = dcp.tensor(name);
    if (tensor.shards.size() != 1 || tensor.shards[0].box.num_elements() != 1) return std::nullopt;
    const FileTensor& stored = tensor.shards[0].stored;
    return whole_number(stored.view().item<double>(), 0, int64_t{1} << 53, name);
  }
  if (!dcp.has_object(name)) return std::nullopt;
  const auto object = dcp.object(name);
  const auto number = object->number(object->root());
  if (!number) return std::nullopt;
  return whole_number(*number, 0, int64_t{1} << 53, name);
}

ForeignRecord record_torchtitan(const fs::path& folder) {
  ForeignRecord record;
  for (const fs::path& part : parts_of(folder)) {
    const DcpFolder dcp(part);
    std::optional<int64_t> steps;
    for (const auto& [name, shape] : dcp.tensors()) {
      const auto state = split_optimizer_name(name);
      if (state && state->state == "step") {
        steps = scalar(dcp, name);
        break;
      }
    }
    for (const char* name : {"train_state.step", "step"}) {
      if (const auto step = scalar(dcp, name)) record.train.iteration = *step;
    }
    for (const std::string& name : dcp.objects()) {
      if (name.find("param_groups.") == std::string::npos) continue;
      const auto object = dcp.object(name);
      read_hyperparameters(*object, object->root(), name, record);
    }
    if (record.train.iteration == 0 && steps) record.train.iteration = *steps;
    if (steps) record.train.optimizer_step = *steps;
  }
  read_trainer_record(folder, record);
  if (record.train.optimizer_step == 0) record.train.optimizer_step = record.train.iteration;
  record.train.consumed_train_samples = kUnknownSamples;
  return record;
}

void read_torchtitan(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  for (const fs::path& part : parts_of(folder)) {
    const DcpFolder dcp(part);
    for (const std::string& name : dcp.objects()) {
      leave_over(tensors, "settings and positions of the loader, the optimizer and the curve, which options say", name);
    }
    for (const auto& [name, shape] : dcp.tensors()) {
      const auto state = split_optimizer_name(name);
      const std::string parameter = without_model_prefix(state ? state->parameter : name, model);
      const std::string key = state ? state_key(state->state) : std::string(kModelKey);
      if (state && state->state == "step") {
        leave_over(tensors, "counts of updates, read with the run's counters", name);
      } else if (!has_titan_form(model, parameter)) {
        const bool is_angles = name == "freqs_cis";
        leave_over(tensors, is_angles ? "rotary angles, which follow from rotary_base" : "no parameter of this model",
                   name);
      } else if (key.empty()) {
        leave_over(tensors, fmt::format("optimizer state '{}', which no optimizer here keeps", state->state), name);
      } else {
        read_titan_tensor(dcp.tensor(name), parameter, key, model, tensors);
      }
    }
  }
}

}  // namespace

bool has_titan_form(const CanonicalModel& model, std::string_view name) {
  return has_canonical_form(model, name) || !titan_layout(model, name).places.empty();
}

void read_titan_tensor(const ForeignTensor& tensor, const std::string& name, const std::string& key,
                       const CanonicalModel& model, ForeignTensors& tensors) {
  if (has_canonical_form(model, name)) return read_canonical_tensor(tensor, name, key, model, tensors);
  const ForeignLayout layout = titan_layout(model, name);
  if (tensor.shape != layout.shape) {
    throw UserError(fmt::format("{} is [{}] in the checkpoint, and [{}] in this model", tensor.name,
                                fmt::join(tensor.shape, ", "), fmt::join(layout.shape, ", ")),
                    "give the architecture that it was trained with");
  }
  add_patches(tensors.stores[key], layout.view.empty() ? tensor : by_pairs(tensor, layout.view), layout);
  ++tensors.num_read;
}

const ForeignSource kTorchtitan = {.kind = ForeignKind::kTorchtitan,
                                   .name = "torch.distributed.checkpoint, as torchtitan writes it",
                                   .is_here = is_torchtitan,
                                   .record = record_torchtitan,
                                   .read = read_torchtitan};

}  // namespace megalith
