// See finetuner_file.h.
#include "compat/finetuner_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "compat/finetuner_reader.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWords = "command line";
constexpr std::string_view kEnvironment = "env.";
constexpr std::array<std::string_view, 3> kSetLists = {"datasets", "pretraining_dataset", "test_datasets"};

constexpr FileTrainer trainer_named(std::string_view name) {
  return {.name = name,
          .assigns = ": ",
          .takes = "this program takes",
          .switch_values = "true or false",
          .unknown = "",
          .unknown_remedy = "",
          .refused_remedy = "remove it",
          .has_null = true};
}

const std::vector<Finetuner>& finetuners() {
  static const std::vector<Finetuner> all = {
      {"axolotl", "axolotl", "sft", axolotl_keys, trainer_named("axolotl"), {"datasets", "pretraining_dataset"}},
      {"llamafactory",
       "llamafactory",
       "sft",
       llamafactory_keys,
       trainer_named("LLaMA-Factory"),
       {"stage", "finetuning_type", "template", "export_dir", "infer_backend", "model_class"}},
      {"trl_sft", "trl", "sft", trl_keys, trainer_named("TRL"), {"dataset_name", "datasets"}},
      {"trl_dpo", "trl", "dpo", trl_keys, trainer_named("TRL"), {}},
      {"trl_kto", "trl", "kto", trl_keys, trainer_named("TRL"), {}},
  };
  return all;
}

// Keys that begin a line, and are not null: presets list every name there is.
std::set<std::string> outer_keys(const std::string& text) {
  std::set<std::string> keys;
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const size_t end = std::min(text.find_first_of(":\n ", begin), text.size() - 1);
    const size_t line_end = std::min(text.find('\n', begin), text.size());
    const std::string_view value = trim(std::string_view(text).substr(end + 1, std::max(line_end, end + 1) - end - 1));
    if (text[end] == ':' && value != "null" && value != "~") keys.insert(text.substr(begin, end - begin));
    if (line_end == text.size()) break;
  }
  return keys;
}

// The sharding that DeepSpeed's file asks for; of a file that is not here, by its name ("ds_z3_offload.json").
struct DeepSpeedFile {
  int64_t stage = 0;
  bool offloads = false;
  std::vector<std::string> unread;  // parts that the trainer's own keys say
};

// Nothing if neither the file nor its name says a stage.
std::optional<DeepSpeedFile> read_deepspeed(const std::string& path) {
  std::error_code code;
  if (fs::is_regular_file(path, code)) {
    DeepSpeedFile found;
    const Json json = load_json(path);
    for (const char* part : {"optimizer", "scheduler"}) {
      if (find_member(json, part, path) != nullptr) found.unread.emplace_back(part);
    }
    const Json* zero = find_member(json, "zero_optimization", path);
    if (zero == nullptr) return found;
    found.stage = json_get_whole(*zero, "stage", 0, 3, path);
    for (const char* part : {"offload_optimizer", "offload_param"}) {
      const Json* offload = find_member(*zero, part, path);
      found.offloads |= offload != nullptr && json_get_or<std::string>(*offload, "device", "none", path) != "none";
    }
    return found;
  }
  const std::string name = fs::path(path).filename().string();
  const bool offloads = name.find("offload") != std::string::npos;
  for (int64_t stage = 0; stage <= 3; ++stage) {
    for (const std::string_view mark : {"zero", "z"}) {
      if (name.find(fmt::format("{}{}", mark, stage)) != std::string::npos) return DeepSpeedFile{stage, offloads, {}};
    }
  }
  return std::nullopt;
}

}  // namespace

ConfigFile FinetunerReader::read(const FinetunerWords& words) {
  take_file();
  for (const auto& [name, value] : words) {
    const FileKey* key = keys_.find(name);
    words_.erase(key->kind == FileKeyKind::kAlias ? key->text : name);
    std::erase_if(lists_, [taken = name](const auto& one) { return one.first == taken; });
    add(name, {value, kWords, name});
  }
  check_keys();
  set_fact("@of", std::string(tuner_.of));
  set_fact("@stage", std::string(tuner_.stage));
  set_fact("@pretrains", is_written("pretraining_dataset") || !sets_of("pretraining_dataset").empty() ? "true" : "");
  apply_all({[&] { apply("method"); }, [&] { apply("model"); }, [&] { choose_trained_weights(); },
             [&] { choose_adapters(); }, [&] { choose_data(); }, [&] { apply("sequence"); }, [&] { apply("batch"); },
             [&] { apply("duration"); }, [&] { apply("optimizer"); }, [&] { choose_learning_rate(); },
             [&] { apply("precision"); }, [&] { apply("recomputation"); }, [&] { choose_sharding(); },
             [&] { choose_outputs(); }, [&] { take_options(); }});
  name_useless_keys(file_.string(), [&](const std::string& name) { return is_written(name); });
  return std::move(result);
}

void FinetunerReader::take_file() {
  try {
    const YamlDocument document = load_yaml(file_, environment_);
    result.errors = document.errors;
    result.notes = document.notes;
    for (const auto& [key, child] : document.root.children) {
      const bool may_list_sets = std::find(kSetLists.begin(), kSetLists.end(), key) != kSetLists.end();
      const bool has_maps = std::any_of(child.items.begin(), child.items.end(), [](const auto& item) {
        return item.is_map();
      });
      if (may_list_sets && has_maps) {
        lists_.emplace_back(key, child);
      } else {
        flatten(key, child);
      }
    }
  } catch (const UserError& error) {
    result.errors.push_back(error);
  }
  for (const auto& [name, word] : words_) {
    if (name.starts_with(kEnvironment)) result.exports[name.substr(kEnvironment.size())] = word.written.text();
  }
  std::erase_if(words_, [](const auto& one) { return one.first.starts_with(kEnvironment); });
}

void FinetunerReader::apply(std::string_view part) {
  static const WordRules rules("finetuner_rules");
  rules.apply(part, *this);
}

void FinetunerReader::choose_adapters() {
  std::vector<std::string> targets;
  if (has("lora_target_modules")) targets = items("lora_target_modules");
  if (tuner_.of == "axolotl" && is_on("lora_target_linear")) targets = {"all-linear"};
  if (targets == std::vector<std::string>{"all"}) targets = {"all-linear"};
  // Experts' weights, which they have as one tensor of all.
  if (is_written("lora_target_parameters")) targets.insert(targets.end(), {"gate_proj", "up_proj", "down_proj"});
  set_fact("@targets", targets.empty() ? "" : fmt::format("[{}]", join(targets, ", ")), "lora_target_modules");
  // LLaMA-Factory's own default.
  const bool is_twice = tuner_.of == "llamafactory" && !has("lora_alpha");
  set_fact("@alpha", is_twice ? std::to_string(2 * whole("lora_r")) : text("lora_alpha"), "lora_alpha");
  apply("adapters");
}

void FinetunerReader::choose_learning_rate() {
  // Below 1 it is a part of the run.
  const double steps = has("warmup_steps") ? number("warmup_steps") : 0;
  const bool is_part = steps > 0 && steps < 1;
  const bool is_count = steps >= 1 || (is_written("warmup_steps") && !is_part);
  set_fact("@warmup_steps", is_count ? text("warmup_steps") : "", "warmup_steps");
  set_fact("@warmup_ratio", text(is_part ? "warmup_steps" : "warmup_ratio"), is_part ? "warmup_steps" : "warmup_ratio");
  if (is_written("cosine_min_lr_ratio")) {
    set_fact("@min_lr", number_text(number("learning_rate") * number("cosine_min_lr_ratio")));
  }
  apply("lr");
}

void FinetunerReader::choose_sharding() {
  const bool has_fsdp = std::any_of(words_.begin(), words_.end(), [&](const auto& one) {
    return one.first.starts_with("fsdp") && is_written(one.first) && one.second.written.text() != "false" &&
           one.second.written.text() != "[]";
  });
  set_fact("@has_fsdp", has_fsdp ? "true" : "false", "fsdp");
  if (has("deepspeed")) {
    const std::optional<DeepSpeedFile> deepspeed = read_deepspeed(text("deepspeed"));
    if (!deepspeed) refuse("deepspeed", "a file that exists, or a name that says the stage, such as ds_z3.json");
    for (const std::string& part : deepspeed->unread) {
      note(fmt::format("{}: its {} is not read, {}'s own keys say it", said("deepspeed"), part, tuner_.trainer.name));
    }
    set_fact("@zero", std::to_string(deepspeed->stage), "deepspeed");
    set_fact("@offloads", deepspeed->offloads ? "true" : "false", "deepspeed");
  }
  if (has("ddp_timeout")) {
    constexpr double kYear = 365.0 * 24 * 60;  // in minutes; theirs may be of centuries
    set_fact("@timeout", number_text(std::min(number("ddp_timeout") / 60, kYear)), "ddp_timeout");
  }
  apply("sharding");
}

void FinetunerReader::choose_outputs() {
  // Beside it: an exported model has a folder of its own.
  const std::string folder = fs::path(text("output_dir") + "/").parent_path().string();
  set_fact("@checkpoints", folder + "-checkpoints", "output_dir");
  set_fact("@board", folder + "-runs", "output_dir");
  apply("outputs");
  apply("logging");
}

const Finetuner* find_finetuner(std::string_view name) {
  const auto& all = finetuners();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Finetuner& one) { return one.name == name; });
  MEGALITH_CHECK(found != all.end(), "no dialect is called {}", name);
  return &*found;
}

const Finetuner* finetuner_of(const fs::path& file) {
  std::error_code error;
  const std::string ending = file.extension().string();
  if ((ending != ".yaml" && ending != ".yml") || !fs::is_regular_file(file, error)) return nullptr;
  std::set<std::string> keys;
  try {
    keys = outer_keys(read_file(file));
  } catch (const UserError&) {  // reported by the code that reads it
    return nullptr;
  }
  const auto has = [&](std::string_view key) { return keys.contains(std::string(key)); };
  for (const Finetuner& tuner : finetuners()) {
    const bool names_model = has(tuner.of == "axolotl" ? "base_model" : "model_name_or_path") || has("model_class");
    if (names_model && std::any_of(tuner.marks.begin(), tuner.marks.end(), has)) return &tuner;
  }
  return nullptr;
}

FinetunerWords take_finetuner_words(std::vector<std::string>& arguments, const Finetuner& tuner, bool has_flags) {
  FinetunerWords words;
  std::vector<std::string> rest;
  const auto is_key = [&](const std::string& name) {
    const FileKey* key = tuner.keys().find(name);
    return key != nullptr && key->name == name;
  };
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const size_t equals = word.find('=');
    std::string name = fold_name(word.substr(is_flag(word) ? 2 : 0, equals - (is_flag(word) ? 2 : 0)));
    const bool negates = !is_key(name) && name.starts_with("no_") && is_key(name.substr(3));
    if (negates) name.erase(0, 3);
    const bool is_theirs = is_key(name) && (is_flag(word) ? has_flags : equals != std::string::npos);
    if (!is_theirs) {
      rest.push_back(word);
      continue;
    }
    std::vector<std::string> values;
    if (equals != std::string::npos) {
      values = {word.substr(equals + 1)};
    } else {
      while (i + 1 < arguments.size() && !is_flag(arguments[i + 1])) values.push_back(arguments[++i]);
    }
    if (values.empty()) values = {negates ? "false" : "true"};
    words.emplace_back(name, values.size() == 1 ? WrittenValue::of(values[0])
                                                : WrittenValue{WrittenValue::Form::kList, std::move(values)});
  }
  arguments = std::move(rest);
  return words;
}

ConfigFile read_finetuner_file(const Finetuner& tuner, const fs::path& file, const FinetunerWords& words,
                               const fs::path& config_root, const EnvironmentMap& environment) {
  return FinetunerReader(tuner, file, config_root, environment).read(words);
}

}  // namespace megalith
