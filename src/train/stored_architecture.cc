#include "train/stored_architecture.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/configuration.h"
#include "checkpoint/kept_tokenizer.h"
#include "checkpoint/manifest.h"
#include "core/error.h"
#include "models/families.h"
#include "models/model_head.h"
#include "train/foreign_load.h"
#include "train/text_tokenizer.h"

namespace megalith {
namespace {

bool has_extra_rows(const Configuration& configuration) {
  return std::any_of(configuration.begin(), configuration.end(),
                     [](const auto& entry) { return entry.first == "extra_vocab_size" && entry.second != "0"; });
}

// Items of a list in option syntax: [a, "b, c"].
std::vector<std::string> list_items(std::string_view text) {
  std::vector<std::string> items;
  std::string item;
  bool is_quoted = false;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (!is_quoted && (text[i] == ',' || text[i] == ' ')) {
      if (!item.empty()) items.push_back(plain_text(std::exchange(item, "")));
      continue;
    }
    item += text[i];
    if (is_quoted && text[i] == '\\' && i + 1 < text.size()) item += text[++i];
  }
  if (!item.empty()) items.push_back(plain_text(item));
  return items;
}

// "T5 1.0 (relu)": identifies an architecture among those of its name.
std::string network_of(std::string_view model_type, std::string_view activation) {
  if (model_type != "t5") return fmt::format("a network with {}", activation);
  return fmt::format("{} ({})", activation == "relu" ? "T5 1.0" : "T5 1.1", activation);
}

// Presets, files and command line must agree with the folder on the kind of model and of MLPs: activations would
// combine, and a model would get another kind's options.
void check_same_network(const std::filesystem::path& folder, const ModelConfig& stored, const OptionSet& theirs,
                        const Resolved& resolved) {
  const OptionSet& ours = *resolved.options;
  const ModelConfig& model = resolved.config.model;
  const auto is_given = [](const Option& option) { return option.source().layer > OptionLayer::kModel; };
  const std::string type = theirs.of(stored.model_type).text();
  const Option& asked = ours.of(model.model_type);
  if (is_given(asked) && model.model_type != stored.model_type) {
    throw UserError(fmt::format("{} holds a model of model_type {}; this model is of model_type {} ({}): these are "
                                "different networks",
                                folder.string(), type, asked.text(), asked.source().where),
                    "leave model_type away: --load_hf gives the architecture");
  }
  constexpr bool ModelConfig::*kActivations[] = {&ModelConfig::swiglu,      &ModelConfig::geglu,
                                                 &ModelConfig::quick_geglu, &ModelConfig::squared_relu,
                                                 &ModelConfig::relu,        &ModelConfig::openai_gelu};
  for (const auto has : kActivations) {
    if (!(stored.*has) || (is_given(ours.of(model.*has)) && !(model.*has))) continue;
    for (const auto other : kActivations) {
      const Option& option = ours.of(model.*other);
      if (other == has || !is_given(option) || !(model.*other)) continue;
      throw UserError(fmt::format("{} holds {}; this model is {} ({}): these are different networks", folder.string(),
                                  network_of(type, theirs.of(stored.*has).name()), network_of(type, option.name()),
                                  option.source().where),
                      fmt::format("leave {} away: --load_hf gives the architecture", option.name()));
    }
  }
}

}  // namespace

void apply_hf_architecture(Resolved& resolved) {
  const std::filesystem::path folder = *resolved.derived.checkpoint.load_hf;
  HfModel hf = read_hf_config(folder);
  for (std::string& note : hf.notes) resolved.notes.push_back(std::move(note));
  // Its layers may get another head.
  hf.config = with_head(std::move(hf.config), resolved.config.model.model_type);
  OptionSet theirs(hf.config);
  check_same_network(folder, hf.config, theirs, resolved);
  std::map<std::string, std::string> values;
  for (const auto& option : theirs.options()) values[option->name()] = plain_text(option->text());
  apply_values(*resolved.options, values, {OptionLayer::kModel, (folder / "config.json").string()});
}

void apply_checkpoint_architecture(Resolved& resolved, const std::string& load) {
  // Newest first: damaged ones are skipped, as when loading weights.
  std::vector<std::filesystem::path> folders;
  const std::vector<int64_t> iterations = list_checkpoints(load);
  for (auto iteration = iterations.rbegin(); iteration != iterations.rend(); ++iteration) {
    folders.push_back(checkpoint_folder(load, *iteration));
  }
  if (std::filesystem::exists(std::filesystem::path(load) / kManifestFile)) folders.insert(folders.begin(), load);
  std::optional<UserError> newest_fault;
  for (const std::filesystem::path& folder : folders) {
    try {
      Manifest manifest = load_manifest(folder);
      find_kept_tokenizer(folder, manifest.configuration);
      ModelConfig model = model_config_of(manifest.architecture, manifest.configuration);
      TokenizerOptions tokenizer;
      const OptionSet architecture(model), vocabulary(tokenizer);
      resolved.derived.text_tokenizer = text_tokenizer_of(manifest.configuration);
      std::map<std::string, std::string> values;
      for (const auto& option : architecture.options()) values[option->name()] = plain_text(option->text());
      for (const auto& [name, value] : manifest.configuration) {
        if (vocabulary.find(name) != nullptr) values[name] = plain_text(value);
        // As written: NullTokenizer has one id more than vocab_size. With extra rows, which exclude NullTokenizer, it
        // differs from the model's.
        if (name == "vocab_size" && value != "null" && !has_extra_rows(manifest.configuration)) values[name] = value;
      }
      apply_values(*resolved.options, values, {OptionLayer::kModel, (folder / kManifestFile).string()});
      return;
    } catch (const UserError& error) {
      if (!newest_fault) newest_fault = error;
    }
  }
  if (newest_fault) {
    throw UserError(fmt::format("no intact checkpoint in {}: {}", load, newest_fault->message()),
                    newest_fault->remedy());
  }
}

void apply_adapter_form(Resolved& resolved) {
  const CheckpointOptions& checkpoint = resolved.derived.checkpoint;
  std::map<std::string, std::string> values;
  LoraOptions lora;
  OptionSet stored(lora);  // the lists, whose items are taken literally
  std::filesystem::path file;
  std::optional<std::filesystem::path> adapters = checkpoint.adapter;
  if (const auto foreign = foreign_load(resolved); !adapters && foreign && holds_adapters(*foreign)) {
    adapters = foreign->folder;
  }
  if (adapters) {
    file = *adapters / kAdapterConfigFile;
    lora = read_adapter_folder(*adapters).options;
    check_adapter_kind(*adapters, resolved.config.model.is_of_diffusers(), *checkpoint.load_hf);
    for (const char* name :
         {"lora.enabled", "lora.dim", "lora.alpha", "lora.dropout", "lora.use_rslora", "lora.use_dora"}) {
      values[name] = plain_text(stored.find(name)->text());
    }
  } else if (checkpoint.load && checkpoint.load_hf && !list_checkpoints(*checkpoint.load).empty()) {
    file = checkpoint_folder(*checkpoint.load, list_checkpoints(*checkpoint.load).back()) / kManifestFile;
    for (const auto& [name, value] : load_manifest(file.parent_path()).configuration) {
      if (!name.starts_with("lora.")) continue;
      Option* option = stored.find(name);
      if (option != nullptr && option->is_list()) {
        option->assign({WrittenValue::Form::kList, list_items(value)}, {});
      } else {
        values[name] = plain_text(value);
      }
    }
  }
  if (values.empty()) return;
  const OptionSource source{OptionLayer::kModel, file.string()};
  apply_values(*resolved.options, values, source);
  LoraOptions& present = resolved.config.lora;
  using Lists = std::pair<const std::vector<std::string>&, const std::vector<std::string>&>;
  for (const auto& [own, items] :
       {Lists{present.target_modules, lora.target_modules}, Lists{present.rank_pattern, lora.rank_pattern},
        Lists{present.alpha_pattern, lora.alpha_pattern}, Lists{present.modules_to_save, lora.modules_to_save}}) {
    resolved.options->of(own).offer({WrittenValue::Form::kList, items}, source);
  }
}

}  // namespace megalith
