// checkpoint-N of transformers' Trainer: a Hugging Face model in safetensors or pytorch_model*.bin, optimizer.pt (or
// Accelerate's optimizer.bin) and trainer_state.json. Or PEFT's adapters instead of the model.
//
// FSDP's optimizer states have the parameters' names; others numbers: positions in Trainer's two groups, matrices first
// (or in a plain optimizer's only one), each in the order of the model's parameters in Python, which no file holds. It
// is known for the families in kOrders.
// Source: transformers 4.57, trainer.py (create_optimizer), trainer_pt_utils.py (get_parameter_names).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <span>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/fused_experts.h"
#include "checkpoint/hf.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/json.h"
#include "foreign/foreign_source.h"
#include "models/families.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Modules of a layer in Python's order, by what their names contain.
struct OrderRow {
  std::string_view family;
  std::vector<std::string_view> modules;
};
const OrderRow kOrders[] = {
    {"llama", {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}},
    {"mistral", {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}},
    {"qwen2", {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}},
    {"qwen3", {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}},
    {"mixtral",
     {"self_attn", "block_sparse_moe.gate", "block_sparse_moe.experts", "input_layernorm", "post_attention_layernorm"}},
    {"qwen3_moe", {"self_attn", "mlp.gate.", "mlp.experts", "mlp", "input_layernorm", "post_attention_layernorm"}},
    {"gpt2", {"ln_1", "attn", "ln_2", "mlp"}},
};

// With transformers 5's classes, which have a layer's experts in two tensors (checkpoint/fused_experts.h).
const OrderRow kFusedOrders[] = {
    {"mixtral", {"self_attn", "block_sparse_moe.gate", "mlp.experts", "input_layernorm", "post_attention_layernorm"}},
    {"qwen3_moe", {"self_attn", "mlp.experts", "mlp.gate.", "mlp", "input_layernorm", "post_attention_layernorm"}},
};

// An expert's, which follow one another.
constexpr std::string_view kExpertLinears[] = {"gate_proj", "up_proj", "w1", "w2", "w3", "down_proj"};

std::optional<fs::path> optimizer_file(const fs::path& folder) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return std::nullopt;
}

bool is_trainer_folder(const fs::path& folder) {
  const bool has_model = fs::exists(folder / "config.json") || is_adapter_folder(folder);
  return optimizer_file(folder) || (has_model && fs::exists(folder / "trainer_state.json"));
}

ForeignRecord record_trainer_folder(const fs::path& folder) {
  ForeignRecord record;
  record.train.consumed_train_samples = kUnknownSamples;
  read_trainer_record(folder, record);
  record.train.optimizer_step = record.train.iteration;
  if (const auto file = optimizer_file(folder)) {
    const TorchArchive archive(*file);
    read_updates(archive, archive.root(), record);
    if (record.train.iteration == 0) record.train.iteration = record.train.optimizer_step;
  }
  return record;
}

const OrderRow* order_of(const CanonicalModel& model, std::span<const OrderRow> orders) {
  const auto row = std::ranges::find(orders, family_for(model.config()).name, &OrderRow::family);
  return row == orders.end() ? nullptr : &*row;
}

// A tensor's place in Python's order.
struct ParameterOrder {
  std::vector<int64_t> key;
  std::string name;
  std::vector<int64_t> shape;
  bool operator<(const ParameterOrder& other) const { return key < other.key; }
};

// An expert's matrix as the tensor that has those of all; other pieces as they are.
Piece fused_piece(const CanonicalModel& model, const Piece& piece) {
  const size_t at = piece.name.find(".experts.");
  if (at == std::string::npos) return piece;
  const size_t layer_end = piece.name.rfind('.', at - 1);
  for (const char* rest : {"gate_up_proj", "down_proj"}) {
    const std::string name = fmt::format("{}.mlp.experts.{}", piece.name.substr(0, layer_end), rest);
    for (const bool is_mixtral : {false, true}) {
      const size_t digits = at + std::string_view(".experts.").size();
      const int64_t expert = std::stoll(piece.name.substr(digits, piece.name.find('.', digits) - digits));
      const std::vector<std::string> matrices = matrices_of_fused_expert(name, expert, is_mixtral);
      if (std::ranges::find(matrices, piece.name) == matrices.end()) continue;
      Piece fused = piece;
      fused.name = name;
      fused.shape = {model.config().expert_count(), std::ssize(matrices) * piece.shape[0], piece.shape[1]};
      return fused;
    }
  }
  return piece;
}

std::vector<ParameterOrder> python_order(const CanonicalModel& model, const OrderRow& order, bool has_fused_experts) {
  // Ours are fused: pieces of one parameter stay in order; biases follow their weight.
  std::vector<ParameterOrder> all;
  int64_t position = 0;
  for (const Placement* placement : model.placements()) {
    for (const Piece& given : placement->pieces) {
      const Piece piece = has_fused_experts ? fused_piece(model, given) : given;
      const auto named = [&all](const std::string& wanted) {
        return std::find_if(all.begin(), all.end(), [&](const ParameterOrder& one) { return one.name == wanted; });
      };
      if (named(piece.name) != all.end()) continue;
      ParameterOrder one{.key = {}, .name = piece.name, .shape = piece.shape};
      std::string_view name = piece.name;
      const bool is_bias = name.ends_with(".bias");
      const std::string stem(name.substr(0, name.rfind('.')));
      int64_t layer = -1, module = 0;
      for (const std::string_view layers : {"model.layers.", "transformer.h."}) {
        if (!name.starts_with(layers)) continue;
        const std::string_view rest = name.substr(layers.size());
        layer = std::stoll(std::string(rest.substr(0, rest.find('.'))));
        const std::string_view below = rest.substr(rest.find('.') + 1);
        const auto found = std::find_if(order.modules.begin(), order.modules.end(),
                                        [&](std::string_view one) { return below.starts_with(one); });
        module = found - order.modules.begin();
      }
      // Before the layers, in them, after them.
      const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
      const bool is_end = layer < 0 && (has("norm") || has("ln_f") || has("lm_head"));
      const int64_t part = layer >= 0 ? 1 : is_end ? 2 : 0;
      int64_t linear = position;
      if (is_bias) {
        const auto weight = named(stem + ".weight");
        if (weight != all.end()) linear = weight->key[3];
      }
      one.key = {part, layer, module, linear, is_bias ? 1 : 0};
      if (const size_t experts = name.find(".experts."); experts != std::string_view::npos && !has_fused_experts) {
        const std::string_view below = name.substr(experts + 9);
        const auto is_here = [&](std::string_view word) { return below.find(word) != std::string_view::npos; };
        const auto* const place = std::find_if(std::begin(kExpertLinears), std::end(kExpertLinears), is_here);
        one.key = {part, layer, module, std::stoll(std::string(below.substr(0, below.find('.')))),
                   place - std::begin(kExpertLinears)};
      }
      all.push_back(std::move(one));
      ++position;
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

// Parameters in an optimizer's groups.
size_t num_numbered(const PickleValue& groups) {
  size_t count = 0;
  for (const PickleValue* group : groups.items) {
    const PickleValue* numbers = group->find("params");
    count += numbers == nullptr ? 0 : numbers->items.size();
  }
  return count;
}

// In the order of the groups: with decay and without, or one for all.
std::vector<ParameterOrder> numbered_by(std::span<const ParameterOrder> order, const PickleValue& groups) {
  std::vector<ParameterOrder> all;
  for (const bool decays : {true, false}) {
    for (const ParameterOrder& one : order) {
      const bool is_decayed = one.shape.size() > 1 || one.name.find(".lora_") != std::string::npos;
      if (groups.items.size() == 1 ? decays : is_decayed == decays) all.push_back(one);
    }
  }
  return all;
}

// take(parameter, our key, value) for each state of a numbered parameter that has the parameter's shape.
void for_each_numbered(
    const TorchArchive& archive, const PickleValue& states, std::span<const ParameterOrder> numbered,
    ForeignTensors& tensors,
    const std::function<void(const ParameterOrder&, const std::string&, const FileTensor&)>& take) {
  states.for_each_entry([&](const PickleValue& key, const PickleValue& state) {
    const auto number = key.whole();
    if (!number || *number < 0 || static_cast<size_t>(*number) >= numbered.size()) {
      return leave_over(tensors, "states of no parameter", key.option_text().value_or("a key"));
    }
    const ParameterOrder& parameter = numbered[static_cast<size_t>(*number)];
    state.for_each_entry([&](const PickleValue& name, const PickleValue& value) {
      const auto text = name.option_text();
      const std::string ours = text ? state_key(*text) : "";
      auto stored = archive.tensor(value);
      if (!stored || text == "step") return;
      if (ours.empty()) return leave_state(tensors, *text);
      if (stored->shape != parameter.shape) {
        return leave_over(
            tensors, "states of another shape than the parameter's, of another model or other groups",
            fmt::format("{} of parameter {} [{}], taken for {} [{}]", *text, *number, fmt::join(stored->shape, ", "),
                        parameter.name, fmt::join(parameter.shape, ", ")));
      }
      take(parameter, ours, *stored);
    });
  });
}

// The adapters that a store has, in PEFT's order: beside the weight that they belong to, A, B, lengths.
std::vector<ParameterOrder> adapter_order(const TensorStore& store, std::span<const ParameterOrder> weights) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<ParameterOrder> order;
  for (const ParameterOrder& weight : weights) {
    std::vector<std::string> names = {weight.name};  // of a module that is saved whole
    if (weight.name.ends_with(kWeight)) {
      const std::string layer = weight.name.substr(0, weight.name.size() - kWeight.size());
      for (const char* ending : {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"}) {
        names.push_back(layer + ending);
      }
    }
    for (const std::string& name : names) {
      if (const auto* entry = store.find(name)) order.push_back({.key = {}, .name = name, .shape = entry->shape});
    }
  }
  return order;
}

void read_trainer_folder(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  read_hf_weights(folder, model, tensors);
  const auto file = optimizer_file(folder);
  if (!file) return;
  const TorchArchive archive(*file);
  const PickleValue* groups = archive.root().find("param_groups");
  const PickleValue* states = archive.root().find("state");
  const auto leave = [&](std::string_view reason) { leave_over(tensors, reason, file->filename().string()); };
  if (groups == nullptr || states == nullptr) return leave("it holds no optimizer's state");
  // The names are groups' too.
  bool has_names = false;
  states->for_each_entry([&](const PickleValue& key, const PickleValue& state) {
    if (!key.is(PickleValue::Kind::kText)) return;
    has_names = true;
    state.for_each_entry([&](const PickleValue& name, const PickleValue& value) {
      const std::string theirs = name.option_text().value_or(""), ours = state_key(theirs);
      if (theirs == "step") return;
      if (ours.empty()) return leave_state(tensors, theirs);
      read_named(archive, value, std::string(key.text), ours, model, tensors);
    });
  });
  if (has_names) return;
  const OrderRow *row = order_of(model, kOrders), *fused = order_of(model, kFusedOrders);
  if (row == nullptr) return leave("the order in which it has this family's parameters is not known");
  std::vector<ParameterOrder> numbered = numbered_by(python_order(model, *row, false), *groups);
  const size_t count = num_numbered(*groups);
  if (count != numbered.size() && fused != nullptr) numbered = numbered_by(python_order(model, *fused, true), *groups);
  if (count != numbered.size()) {
    return leave(fmt::format("it has {} parameters, and this model {}", count, numbered.size()));
  }
  for_each_numbered(archive, *states, numbered, tensors,
                    [&](const ParameterOrder& parameter, const std::string& key, const FileTensor& stored) {
                      read_canonical_tensor(ForeignTensor::whole(parameter.name, stored), parameter.name, key, model,
                                            tensors);
                    });
}

}  // namespace

void read_named(const TorchArchive& archive, const PickleValue& value, const std::string& name, const std::string& key,
                const CanonicalModel& model, ForeignTensors& tensors) {
  const auto stored = archive.tensor(value);
  if (!stored) return leave_over(tensors, "no tensor", name);
  read_canonical_tensor(ForeignTensor::whole(name, *stored), name, key, model, tensors);
}

void read_hf_weights(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  if (!fs::exists(folder / "model.safetensors") && !fs::exists(folder / "model.safetensors.index.json")) {
    bool has_pickles = false;
    for (const std::string& file : names_in(folder)) {
      if (!file.starts_with("pytorch_model") || !file.ends_with(".bin")) continue;
      has_pickles = true;
      const TorchArchive archive(folder / file);
      archive.root().for_each_entry([&](const PickleValue& key, const PickleValue& value) {
        read_named(archive, value, key.option_text().value_or(""), std::string(kModelKey), model, tensors);
      });
    }
    if (has_pickles) return;
  }
  const HfWeights weights = open_hf_weights(folder);
  std::set<std::string> used;
  TensorStore& store = tensors.stores[std::string(kModelKey)];
  for (const Placement* placement : model.placements()) {
    for (const Piece& piece : placement->pieces) {
      const std::string name(weights.store.resolve(piece));
      for (const std::string& alias : piece.aliases) used.insert(alias);
      if (name.empty() || !used.insert(name).second) continue;
      used.insert(piece.name);
      const TensorStore::Entry& entry = *weights.store.find(name);
      if (!entry.scales.empty()) {
        throw UserError(fmt::format("{}: {} is stored with scales", folder.string(), name),
                        "give the folder to --load_hf, which decodes it, or save it in BF16");
      }
      for (const TensorStore::Part& part : entry.parts) store.add(piece.name, entry.shape, part);
      ++tensors.num_read;
    }
  }
  for (const auto& [name, entry] : weights.store.entries()) {
    if (!used.contains(name) && !weights.may_be_unused(name)) leave_over(tensors, "no parameter of this model", name);
  }
}

void read_trainer_adapters(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  constexpr std::string_view kPrefix = "base_model.model.";
  TensorStore& store = tensors.stores[std::string(kModelKey)];
  const TensorStore adapters = TensorStore::open_file(folder / kAdapterWeightsFile);
  for (const auto& [name, entry] : adapters.entries()) {
    if (!name.starts_with(kPrefix) || name.ends_with(".base_layer.weight")) {
      leave_over(tensors, "the model's own, beside an adapter", name);
      continue;
    }
    for (const TensorStore::Part& part : entry.parts) store.add(name.substr(kPrefix.size()), entry.shape, part);
    ++tensors.num_read;
  }
  const auto file = optimizer_file(folder);
  if (!file) return;
  const TorchArchive archive(*file);
  const PickleValue* groups = archive.root().find("param_groups");
  const PickleValue* states = archive.root().find("state");
  const auto leave = [&](std::string_view reason) { leave_over(tensors, reason, file->filename().string()); };
  if (groups == nullptr || states == nullptr) return leave("it holds no optimizer's state");
  const OrderRow* row = order_of(model, kOrders);
  if (row == nullptr) return leave("the order in which it has this family's parameters is not known");
  const std::vector<ParameterOrder> order = adapter_order(store, python_order(model, *row, false));
  const std::vector<ParameterOrder> numbered = numbered_by(order, *groups);
  if (const size_t count = num_numbered(*groups); count != numbered.size()) {
    return leave(fmt::format("it has {} parameters, and these adapters {}", count, numbered.size()));
  }
  for_each_numbered(archive, *states, numbered, tensors,
                    [&](const ParameterOrder& parameter, const std::string& key, const FileTensor& stored) {
                      tensors.stores[key].add(parameter.name, stored.shape,
                                              {.box = Box::whole(stored.shape), .stored = stored});
                      ++tensors.num_read;
                    });
}

void read_trainer_record(const fs::path& folder, ForeignRecord& record) {
  if (fs::exists(folder / "config.json")) {
    HfModel model = read_hf_config(folder);
    const Configuration architecture = configuration_of(OptionSet(model.config));
    record.options.insert(record.options.end(), architecture.begin(), architecture.end());
    record.notes = std::move(model.notes);
  }
  const fs::path state = folder / "trainer_state.json";
  if (!fs::exists(state)) return;
  record.train.iteration = json_get<int64_t>(load_json(state), "global_step", state.string());
  if (record.train.iteration < 0) throw UserError(fmt::format("{}: global_step is negative", state.string()));
}

const ForeignSource kTrainerFolder = {.kind = ForeignKind::kTrainer,
                                      .name = "transformers' Trainer",
                                      .is_here = is_trainer_folder,
                                      .record = record_trainer_folder,
                                      .read = read_trainer_folder};

}  // namespace megalith
