// torchtune's epoch_N or step_N: a model in Hugging Face's files, or one of Meta's or torchtune's names in model-*.bin,
// and recipe_state.pt with the optimizer's state, beside it or in ../recipe_state; or both in a folder of
// torch.distributed.checkpoint, as asynchronous saves are.
//
// The optimizer's states have numbers: positions in the one group of all parameters, in the order of its modules.
// Queries and keys of Llama and Mistral have Meta's order of a rotated pair's channels there.
// Source: torchtune, training/checkpointing/{_checkpointer,_checkpoint_client}.py, models/convert_weights.py.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/folder.h"
#include "core/json.h"
#include "foreign/foreign_source.h"
#include "models/families.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char *kRecipeFile = "recipe_state.pt", *kRecipeFolder = "recipe_state";

struct TuneName {
  std::string_view theirs, ours;
  std::string_view paired = {};  // Meta's name of a projection whose heads have its order of channels
};
constexpr TuneName kTuneFirst[] = {{"tok_embeddings.weight", "model.embed_tokens.weight"}};
constexpr TuneName kTuneLast[] = {{"norm.scale", "model.norm.weight"}, {"output.weight", "lm_head.weight"}};
// In the order of a layer's modules.
constexpr TuneName kTuneLayers[] = {
    {"attn.q_proj.weight", "self_attn.q_proj.weight", "attention.wq.weight"},
    {"attn.q_proj.bias", "self_attn.q_proj.bias"},
    {"attn.k_proj.weight", "self_attn.k_proj.weight", "attention.wk.weight"},
    {"attn.k_proj.bias", "self_attn.k_proj.bias"},
    {"attn.v_proj.weight", "self_attn.v_proj.weight"},
    {"attn.v_proj.bias", "self_attn.v_proj.bias"},
    {"attn.output_proj.weight", "self_attn.o_proj.weight"},
    {"attn.q_norm.scale", "self_attn.q_norm.weight"},
    {"attn.k_norm.scale", "self_attn.k_norm.weight"},
    {"mlp.w1.weight", "mlp.gate_proj.weight"},
    {"mlp.w2.weight", "mlp.down_proj.weight"},
    {"mlp.w3.weight", "mlp.up_proj.weight"},
    {"sa_norm.scale", "input_layernorm.weight"},
    {"mlp_norm.scale", "post_attention_layernorm.weight"},
};

// The names of a model in torchtune, as those of the model's tensors or of Meta's.
class TuneNames {
 public:
  explicit TuneNames(const CanonicalModel& model) : model_(model) {
    const std::string_view family = family_for(model.config()).name;
    constexpr std::string_view kPaired[] = {"llama", "mistral"}, kPlain[] = {"qwen2", "qwen3"};
    const bool is_paired = std::ranges::find(kPaired, family) != std::end(kPaired);
    is_known_ = is_paired || std::ranges::find(kPlain, family) != std::end(kPlain);
    if (!is_known_) return;
    for (const TuneName& row : kTuneFirst) add(std::string(row.theirs), std::string(row.ours));
    for (int64_t layer = 0; layer < model.config().num_layers; ++layer) {
      for (const TuneName& row : kTuneLayers) {
        const bool has_pairs = is_paired && !row.paired.empty();
        add(fmt::format("layers.{}.{}", layer, row.theirs),
            has_pairs ? fmt::format("layers.{}.{}", layer, row.paired)
                      : fmt::format("model.layers.{}.{}", layer, row.ours));
      }
    }
    for (const TuneName& row : kTuneLast) add(std::string(row.theirs), std::string(row.ours));
  }

  bool is_known() const { return is_known_; }
  // "" if it is none.
  std::string ours(std::string_view theirs) const {
    const auto found = std::ranges::find(all_, theirs, [](const auto& entry) { return std::string_view(entry.first); });
    return found == all_.end() ? "" : found->second;
  }
  // By its number in an optimizer's group, or its name.
  std::string by_key(std::string_view key) const {
    size_t number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc() || end != key.data() + key.size()) return ours(key);
    return number < all_.size() ? all_[number].second : "";
  }

 private:
  // A tied head is no parameter of its own.
  void add(std::string theirs, std::string ours) {
    const Piece* piece = model_.piece(ours);
    const bool is_there = piece != nullptr ? piece->name == ours : has_titan_form(model_, ours);
    if (is_there) all_.emplace_back(std::move(theirs), std::move(ours));
  }

  const CanonicalModel& model_;
  bool is_known_ = false;
  std::vector<std::pair<std::string, std::string>> all_;  // in the order of the modules
};

std::string tune_folder_name(const fs::path& folder) { return (folder / "x").parent_path().filename().string(); }

std::optional<fs::path> recipe_file(const fs::path& folder) {
  if (fs::exists(folder / kRecipeFile)) return folder / kRecipeFile;
  const fs::path beside = (folder / "x").parent_path().parent_path() / kRecipeFolder / kRecipeFile;
  if (tune_folder_name(folder).starts_with("epoch_") && fs::exists(beside)) return beside;
  return std::nullopt;
}

bool is_torchtune(const fs::path& folder) { return recipe_file(folder).has_value(); }

std::optional<int64_t> recipe_count(const TorchArchive& recipe, std::string_view name) {
  const PickleValue* value = recipe.root().find(name);
  const auto number = value == nullptr ? std::nullopt : recipe.number(*value);
  if (!number) return std::nullopt;
  return whole_number(*number, 0, int64_t{1} << 53, fmt::format("{}: {}", recipe.what(), name));
}

// A state beside the folders is of the last that had one.
TorchArchive open_recipe(const fs::path& folder) {
  const fs::path file = *recipe_file(folder);
  TorchArchive recipe(file);
  const auto epochs = recipe_count(recipe, "epochs_run");
  if (file.parent_path().filename() != kRecipeFolder || !epochs) return recipe;
  if (const std::string own = fmt::format("epoch_{}", *epochs - 1); own != tune_folder_name(folder)) {
    throw UserError(fmt::format("{} is the state after {} epochs, of {}, and {} is another's", file.string(), *epochs,
                                own, folder.string()),
                    fmt::format("give {} to --load; or only these weights to --load_hf",
                                (folder.parent_path() / own).string()));
  }
  return recipe;
}

struct TuneState {
  std::string_view parameter, state;
};
// "optimizer.state.0.exp_avg"
std::optional<TuneState> split_tune_state(std::string_view name) {
  constexpr std::string_view kPrefix = "optimizer.state.";
  const size_t dot = name.rfind('.');
  if (!name.starts_with(kPrefix) || dot < kPrefix.size()) return std::nullopt;
  return TuneState{name.substr(kPrefix.size(), dot - kPrefix.size()), name.substr(dot + 1)};
}

ForeignRecord record_torchtune(const fs::path& folder) {
  ForeignRecord record;
  read_trainer_record(folder, record);
  record.train.consumed_train_samples = kUnknownSamples;
  const TorchArchive recipe = open_recipe(folder);
  if (const PickleValue* optimizer = recipe.root().find("optimizer")) read_updates(recipe, *optimizer, record);
  if (is_dcp_folder(folder)) {
    const DcpFolder dcp(folder);
    for (const auto& [name, shape] : dcp.tensors()) {
      const auto state = split_tune_state(name);
      if (!state || state->state != "step") continue;
      const ForeignTensor step = dcp.tensor(name);
      if (step.shards.size() != 1 || step.shards[0].box.num_elements() != 1) continue;
      record.train.optimizer_step =
          whole_number(step.shards[0].stored.view().item<double>(), 0, int64_t{1} << 50, name);
      break;
    }
  }
  record.train.iteration = recipe_count(recipe, "steps_run").value_or(record.train.optimizer_step);
  record.train.seed = recipe_count(recipe, "seed").value_or(0);
  record.notes.push_back(fmt::format(
      "{}: {} of {} epochs are run (max_steps_per_epoch {}): the run's own options say when it ends", recipe.what(),
      recipe_count(recipe, "epochs_run").value_or(0), recipe_count(recipe, "total_epochs").value_or(0),
      recipe_count(recipe, "max_steps_per_epoch").value_or(0)));
  return record;
}

class TuneReader {
 public:
  TuneReader(const CanonicalModel& model, ForeignTensors& tensors)
      : model_(model), tensors_(tensors), names_(model) {}

  // known: a name of the model's or Meta's.
  void read(const ForeignTensor& tensor, const std::string& known, const std::string& key) {
    if (!has_titan_form(model_, known)) return leave_over(tensors_, "no parameter of this model", tensor.name);
    read_titan_tensor(tensor, known, key, model_, tensors_);
  }

  void read_weight(const ForeignTensor& tensor, const std::string& name) {
    read(tensor, has_titan_form(model_, name) ? name : names_.ours(name), std::string(kModelKey));
  }

  void read_state(const ForeignTensor& tensor, std::string_view parameter, std::string_view state) {
    if (state == "step") return;
    if (!names_.is_known()) {
      return leave_over(tensors_, "the order in which torchtune has this family's parameters is not known", state);
    }
    const std::string key = state_key(state);
    if (key.empty()) return leave_state(tensors_, state);
    read(tensor, names_.by_key(parameter), key);
  }

  void read_states(const TorchArchive& recipe, std::string_view parameter, const PickleValue& states) {
    states.for_each_entry([&](const PickleValue& name, const PickleValue& value) {
      const std::string state = name.option_text().value_or("");
      const auto stored = recipe.tensor(value);
      if (!stored) return;
      read_state(ForeignTensor::whole(fmt::format("{} of {}", state, parameter), *stored), parameter, state);
    });
  }

 private:
  const CanonicalModel& model_;
  ForeignTensors& tensors_;
  TuneNames names_;
};

void read_asynchronous(const DcpFolder& dcp, TuneReader& reader) {
  constexpr std::string_view kModel = "model.";
  for (const auto& [name, shape] : dcp.tensors()) {
    if (const auto state = split_tune_state(name)) {
      reader.read_state(dcp.tensor(name), state->parameter, state->state);
    } else if (name.starts_with(kModel)) {
      reader.read_weight(dcp.tensor(name), name.substr(kModel.size()));
    }
  }
}

// False if there are none.
bool read_pickled_weights(const fs::path& folder, TuneReader& reader, ForeignTensors& tensors) {
  bool has_some = false;
  for (const std::string& file : names_in(folder)) {
    const bool is_model = file.starts_with("model-") || file.starts_with("pytorch_model");
    if (!is_model || !file.ends_with(".bin")) continue;
    has_some = true;
    const TorchArchive archive(folder / file);
    archive.root().for_each_entry([&](const PickleValue& key, const PickleValue& value) {
      const std::string name = key.option_text().value_or("");
      const auto stored = archive.tensor(value);
      if (!stored) return leave_over(tensors, "no tensor", name);
      reader.read_weight(ForeignTensor::whole(name, *stored), name);
    });
  }
  return has_some;
}

void read_torchtune(const fs::path& folder, const CanonicalModel& model, ForeignTensors& tensors) {
  TuneReader reader(model, tensors);
  if (is_dcp_folder(folder)) return read_asynchronous(DcpFolder(folder), reader);
  if (!read_pickled_weights(folder, reader, tensors)) read_hf_weights(folder, model, tensors);
  const TorchArchive recipe = open_recipe(folder);
  const PickleValue* optimizer = recipe.root().find("optimizer");
  if (optimizer == nullptr) return leave_over(tensors, "it holds no optimizer's state", recipe.what());
  const auto read_all = [&](const PickleValue& states, const std::optional<std::string>& parameter) {
    states.for_each_entry([&](const PickleValue& key, const PickleValue& state) {
      reader.read_states(recipe, parameter ? *parameter : key.option_text().value_or("a key"), state);
    });
  };
  if (const PickleValue* states = optimizer->find("state")) return read_all(*states, std::nullopt);
  // optimizer_in_bwd: an optimizer a parameter, by its name.
  optimizer->for_each_entry([&](const PickleValue& name, const PickleValue& one) {
    const PickleValue* states = one.find("state");
    if (states != nullptr) read_all(*states, name.option_text());
  });
}

}  // namespace

const ForeignSource kTorchtune = {.kind = ForeignKind::kTorchtune,
                                  .name = "torchtune",
                                  .is_here = is_torchtune,
                                  .record = record_torchtune,
                                  .read = read_torchtune};

}  // namespace megalith
