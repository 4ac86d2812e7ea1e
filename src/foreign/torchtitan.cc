// torchtitan's folders of torch.distributed.checkpoint: parameters by Meta's names, the optimizer's states under
// "optimizer.state.NAME.exp_avg", in its flattened form and by groups alike. Also such folders of any PyTorch program
// whose parameters have Hugging Face's names, as FSDP in Accelerate writes them.
//
// Llama's queries and keys are stored with the channels of a rotated pair side by side; ours are half a head apart.
// Source: torchtitan, components/{checkpoint,optimizer}.py, models/llama3/model/state_dict_adapter.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "foreign/foreign_source.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

enum class TitanForm { kWhole, kQueries, kKeys, kValues, kGate, kUp, kExpertGate, kExpertUp, kExpertDown };

struct TitanName {
  std::string_view theirs, ours;
  TitanForm form = TitanForm::kWhole;
};

constexpr TitanName kTitanEnds[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr TitanName kTitanLayers[] = {
    {"attention.wq.weight", "self_attn.qkv_proj.weight", TitanForm::kQueries},
    {"attention.wk.weight", "self_attn.qkv_proj.weight", TitanForm::kKeys},
    {"attention.wv.weight", "self_attn.qkv_proj.weight", TitanForm::kValues},
    {"attention.wo.weight", "self_attn.o_proj.weight"},
    {"attention.q_norm.weight", "self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"feed_forward.w1.weight", "mlp.gate_up_proj.weight", TitanForm::kGate},
    {"feed_forward.w3.weight", "mlp.gate_up_proj.weight", TitanForm::kUp},
    {"feed_forward.w2.weight", "mlp.down_proj.weight"},
    {"moe.router.gate.weight", "mlp.gate.weight"},
    {"moe.expert_bias", "mlp.gate.e_score_correction_bias"},
    {"moe.experts.w1", "mlp.experts.gate_up_proj.weight", TitanForm::kExpertGate},
    {"moe.experts.w3", "mlp.experts.gate_up_proj.weight", TitanForm::kExpertUp},
    {"moe.experts.w2", "mlp.experts.down_proj.weight", TitanForm::kExpertDown},
};

const TitanName* find_titan_row(std::span<const TitanName> rows, std::string_view name) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const TitanName& row) { return row.theirs == name; });
  return found == rows.end() ? nullptr : &*found;
}

// A parameter's tensor of a name; null if the model has none.
struct TitanParameter {
  const TitanName* row = nullptr;
  const Placement* placement = nullptr;
};
TitanParameter titan_parameter(const CanonicalModel& model, std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  TitanParameter found;
  if (!name.starts_with(kLayers)) {
    found.row = find_titan_row(kTitanEnds, name);
    if (found.row != nullptr) found.placement = model.find(found.row->ours);
    return found;
  }
  name.remove_prefix(kLayers.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return found;
  found.row = find_titan_row(kTitanLayers, name.substr(dot + 1));
  if (found.row != nullptr) {
    found.placement = model.find(fmt::format("model.layers.{}.{}", name.substr(0, dot), found.row->ours));
  }
  return found;
}

Patch rows_of(const std::vector<int64_t>& local, int64_t to, int64_t count) {
  std::vector<int64_t> shape = local;
  shape[0] = count;
  Patch patch = Patch::whole(shape);
  patch.local.offset[0] = to;
  return patch;
}

// (heads * d, in) as (heads, d / 2, 2, in): a pair's channels in a dim of their own. Rows that a rank holds are a run.
ForeignTensor by_pairs(const ForeignTensor& tensor, int64_t heads, int64_t d) {
  ForeignTensor paired{.name = tensor.name, .shape = {heads, d / 2, 2, tensor.shape[1]}, .shards = {}};
  for (const ForeignTensor::Shard& shard : tensor.shards) {
    const int64_t first = shard.box.offset[0], count = shard.box.extent[0];
    int64_t row = first;
    for (Box& box : flat_range_boxes({heads, d / 2, 2}, first, first + count)) {
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

// Channel 2j + t of a stored head is channel t d / 2 + j of ours.
std::vector<Patch> pair_patches(int64_t heads, int64_t d, int64_t columns, int64_t to) {
  std::vector<Patch> patches;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      patches.push_back({.foreign = {{head, 0, half, 0}, {1, d / 2, 1, columns}},
                         .local = {{to + head * d + half * d / 2, 0}, {d / 2, columns}},
                         .dims = {1, 3}});
    }
  }
  return patches;
}

// One of an expert's matrices, of all experts: (e, rows, columns).
std::vector<Patch> expert_patches(int64_t num_experts, int64_t rows, int64_t columns, int64_t stride, int64_t first) {
  std::vector<Patch> patches;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    patches.push_back({.foreign = {{expert, 0, 0}, {1, rows, columns}},
                       .local = {{expert * stride + first, 0}, {rows, columns}},
                       .dims = {1, 2}});
  }
  return patches;
}

class TitanReader {
 public:
  TitanReader(const CanonicalModel& model, ForeignTensors& tensors) : model_(model), tensors_(tensors) {}

  bool knows(std::string_view name) const {
    return titan_parameter(model_, name).placement != nullptr || model_.piece(name) != nullptr;
  }

  void read(const ForeignTensor& tensor, const std::string& name, const std::string& key) {
    if (model_.piece(name) != nullptr) return read_canonical_tensor(tensor, name, key, model_, tensors_);
    const auto [row, placement] = titan_parameter(model_, name);
    const std::vector<int64_t>& local = placement->local_shape;
    const ModelConfig& config = model_.config();
    const int64_t d = config.head_dim(), n = config.num_attention_heads, g = config.num_kv_heads();
    const auto rows = [&](int64_t to, int64_t count) {
      std::vector<int64_t> shape = local;
      shape[0] = count;
      require_shape(tensor, shape);
      const std::vector<Patch> patches = {rows_of(local, to, count)};
      add(tensor, *placement, patches, key);
    };
    const auto heads = [&](int64_t to, int64_t count) {
      // Families that norm heads have Hugging Face's order in torchtitan too.
      if (config.qk_layernorm) return rows(to, count * d);
      require_shape(tensor, {count * d, local[1]});
      add(by_pairs(tensor, count, d), *placement, pair_patches(count, d, local[1], to), key);
    };
    const auto experts = [&](int64_t count, int64_t part) {
      if (local.size() != 2) {
        throw UserError(fmt::format("{}: experts that this family keeps in one tensor are not read", tensor.name),
                        "export the checkpoint to Hugging Face's format with torchtitan, for --load_hf");
      }
      const int64_t e = config.expert_count(), per_expert = local[0] / e, own = per_expert / count;
      require_shape(tensor, {e, own, local[1]});
      add(tensor, *placement, expert_patches(e, own, local[1], per_expert, part * own), key);
    };
    switch (row->form) {
      case TitanForm::kWhole:
        // Vocabularies are padded here.
        return rows(0, is_vocabulary(row->ours) ? *config.vocab_size : local[0]);
      case TitanForm::kQueries:
        return heads(0, n);
      case TitanForm::kKeys:
        return heads(n * d, g);
      case TitanForm::kValues:
        return rows((n + g) * d, g * d);
      case TitanForm::kGate:
        return rows(0, local[0] / 2);
      case TitanForm::kUp:
        return rows(local[0] / 2, local[0] / 2);
      case TitanForm::kExpertGate:
        return experts(2, 0);
      case TitanForm::kExpertUp:
        return experts(2, 1);
      case TitanForm::kExpertDown:
        return experts(1, 0);
    }
  }

 private:
  static bool is_vocabulary(std::string_view name) {
    return name == "model.embed_tokens.weight" || name == "lm_head.weight";
  }

  static void require_shape(const ForeignTensor& tensor, const std::vector<int64_t>& expected) {
    if (tensor.shape == expected) return;
    throw UserError(fmt::format("{} is [{}] in the checkpoint, and [{}] in this model", tensor.name,
                                fmt::join(tensor.shape, ", "), fmt::join(expected, ", ")),
                    "give the architecture that it was trained with");
  }

  void add(const ForeignTensor& tensor, const Placement& placement, std::span<const Patch> patches,
           const std::string& key) {
    add_patches(tensors_.stores[key], tensor, placement, patches);
    ++tensors_.num_read;
  }

  const CanonicalModel& model_;
  ForeignTensors& tensors_;
};

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

std::string without_model_prefix(std::string_view name, const TitanReader& reader) {
  constexpr std::string_view kPrefix = "model.";
  if (reader.knows(name) || !name.starts_with(kPrefix)) return std::string(name);
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
    if (record.train.iteration == 0 && steps) record.train.iteration = *steps;
    if (steps) record.train.optimizer_step = *steps;
  }
  read_trainer_record(folder, record);
  if (record.train.optimizer_step == 0) record.train.optimizer_step = record.train.iteration;
  record.train.consumed_train_samples = kUnknownSamples;
  return record;
}

void read_torchtitan(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  TitanReader reader(model, tensors);
  for (const fs::path& part : parts_of(folder)) {
    const DcpFolder dcp(part);
    for (const std::string& name : dcp.objects()) {
      leave_over(tensors, "settings and positions of the loader, the optimizer and the curve, which options say", name);
    }
    for (const auto& [name, shape] : dcp.tensors()) {
      const auto state = split_optimizer_name(name);
      const std::string parameter = without_model_prefix(state ? state->parameter : name, reader);
      const std::string key = state ? state_key(state->state) : std::string(kModelKey);
      if (state && state->state == "step") {
        leave_over(tensors, "counts of updates, read with the run's counters", name);
      } else if (!reader.knows(parameter)) {
        const bool is_angles = name == "freqs_cis";
        leave_over(tensors, is_angles ? "rotary angles, which follow from rotary_base" : "no parameter of this model",
                   name);
      } else if (key.empty()) {
        leave_over(tensors, fmt::format("optimizer state '{}', which no optimizer here keeps", state->state), name);
      } else {
        reader.read(dcp.tensor(name), parameter, key);
      }
    }
  }
}

}  // namespace

const ForeignSource kTorchtitan = {.kind = ForeignKind::kTorchtitan,
                                   .name = "torch.distributed.checkpoint, as torchtitan writes it",
                                   .is_here = is_torchtitan,
                                   .record = record_torchtitan,
                                   .read = read_torchtitan};

}  // namespace megalith
