#include "config/yaml_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/collect_errors.h"
#include "core/strings.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kHeaderKeys = {"work_group", "user_name", "exp_name", "workspace"};
const std::vector<std::string> kLayoutKeys = {"work_group", "user_name", "exp_name", "workspace",
                                              "platform",   "env",       "modules"};
const std::vector<std::string> kModuleKeys = {"framework", "config", "model", "trainer_class", "overrides"};
// Frameworks with our option names, and one whose keys are translated.
const std::vector<std::string> kFrameworks = {"megatron", "megalith", "torchtitan"};

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_yaml_name(const YamlNode& node) {
  return node.is_scalar() && (node.text.ends_with(".yaml") || node.text.ends_with(".yml"));
}

class ConfigReader {
 public:
  ConfigReader(const fs::path& file, const fs::path& root, const EnvironmentMap& environment)
      : file_(file), root_(root), environment_(environment) {}

  ConfigFile read() {
    YamlDocument document = load(file_);
    if (document.root.is_map()) {
      const bool is_layout = document.root.find("modules") != nullptr;
      collect(result_.errors, [&] { is_layout ? read_layout(document.root) : read_flat(document.root); });
    } else if (document.root.kind != YamlNode::Kind::kNull) {
      fail(document.root, "the file is not a map of options", "write NAME: VALUE, one option a line");
    }
    // Presets are below the experiment's own settings; later settings win within a layer.
    ConfigFile result = std::move(result_);
    std::vector<Setting> settings = std::move(trainer_preset_);
    note_preset_conflicts(settings, model_preset_, result.notes);
    settings.insert(settings.end(), model_preset_.begin(), model_preset_.end());
    settings.insert(settings.end(), result.settings.begin(), result.settings.end());
    result.settings = std::move(settings);
    return result;
  }

 private:
  YamlDocument load(const fs::path& path) {
    YamlDocument document = load_yaml(path, environment_);
    result_.errors.insert(result_.errors.end(), document.errors.begin(), document.errors.end());
    result_.notes.insert(result_.notes.end(), document.notes.begin(), document.notes.end());
    return document;
  }

  void fail(const YamlNode& node, const std::string& message, const std::string& remedy) {
    result_.errors.emplace_back(node.where.empty() ? message : node.where + ": " + message, remedy);
  }

  void unknown_key(const YamlNode& node, const std::string& key, const std::vector<std::string>& known,
                   const std::string& remedy) {
    const std::string nearest = nearest_word(key, known);
    if (nearest.empty()) return fail(node, fmt::format("unknown key '{}'", key), remedy);
    fail(node, fmt::format("unknown key '{}'. Did you mean '{}'?", key, nearest), remedy);
  }

  void read_layout(const YamlNode& root) {
    std::vector<Setting> beside;  // modules
    for (const auto& [key, node] : root.children) {
      if (key == "modules") {
        read_modules(node);
      } else if (read_common(key, node)) {
        continue;
      } else if (!nearest_word(key, kLayoutKeys).empty()) {
        unknown_key(node, key, kLayoutKeys, "");
      } else {
        read_setting(key, node, OptionLayer::kFile, beside);
      }
    }
    if (beside.empty()) return;
    std::vector<std::string> names;
    for (const Setting& setting : beside) names.push_back(setting.name);
    result_.notes.push_back(fmt::format("{}: {} beside modules: read as overrides of the trainer, though Primus leaves "
                                        "them unread there",
                                        beside.front().source.where, join(names, ", ")));
    result_.settings.insert(result_.settings.end(), beside.begin(), beside.end());
  }

  void read_flat(const YamlNode& root) {
    if (!check_framework(root)) return;
    for (const auto& [key, node] : root.children) {
      if (key == "framework" || read_common(key, node)) continue;
      if ((key == "model" || key == "config") && is_yaml_name(node)) {
        read_preset(key, node);
      } else if (key == "overrides" && node.is_map()) {
        read_settings(node, "", OptionLayer::kFile, result_.settings);
      } else {
        read_setting(key, node, OptionLayer::kFile, result_.settings);
      }
    }
  }

  bool read_common(const std::string& key, const YamlNode& node) {
    if (contains(kHeaderKeys, key)) {
      read_setting(key, node, OptionLayer::kFile, result_.header);
    } else if (key == "env") {
      read_exports(node);
    } else if (key == "platform") {
      result_.notes.push_back(
          fmt::format("{}: platform has no effect here: the launcher's environment says nodes and ranks", node.where));
    } else {
      return false;
    }
    return true;
  }

  void read_exports(const YamlNode& node) {
    if (node.kind == YamlNode::Kind::kNull) return;
    if (!node.is_map()) return fail(node, "env takes a map of variables", "write env: {NAME: VALUE}");
    for (const auto& [name, value] : node.children) {
      if (!value.is_scalar()) {
        fail(value, fmt::format("env.{} is not a plain value", name), "environment variables are texts");
      } else {
        result_.exports[name] = expand_variables(value.text);
      }
    }
  }

  // $VAR, as in a shell; empty if unset. ${VAR} was replaced on reading.
  std::string expand_variables(const std::string& text) const {
    const auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    std::string result;
    for (size_t i = 0; i < text.size();) {
      size_t end = i + 1;
      if (text[i] == '$') {
        while (end < text.size() && is_name(text[end])) ++end;
      }
      if (end == i + 1) {
        result += text[i];
      } else {
        const auto found = environment_.find(text.substr(i + 1, end - i - 1));
        if (found != environment_.end()) result += found->second;
      }
      i = end;
    }
    return result;
  }

  void read_modules(const YamlNode& modules) {
    if (!modules.is_map()) return fail(modules, "modules is not a map", "write modules: pre_trainer: …");
    const YamlNode* trainer = nullptr;
    for (const auto& [name, node] : modules.children) {
      if (name.find("trainer") == std::string::npos) {
        fail(node, fmt::format("module '{}' is no trainer", name), "name it pre_trainer or post_trainer");
      } else if (trainer) {
        fail(node, "two trainers in one file", fmt::format("keep one; the other is at {}", trainer->where));
      } else if (!node.is_map()) {
        fail(node, fmt::format("modules.{} is not a map", name), "it takes framework, config, model and overrides");
      } else {
        trainer = &node;
      }
    }
    if (trainer) {
      read_trainer(*trainer);
    } else if (modules.children.empty()) {
      fail(modules, "modules names no trainer", "write modules: pre_trainer: …");
    }
  }

  void read_trainer(const YamlNode& trainer) {
    if (!check_framework(trainer)) return;
    for (const auto& [key, node] : trainer.children) {
      if (key == "framework") continue;
      if (key == "model" || key == "config") {
        if (node.kind != YamlNode::Kind::kNull) read_preset(key, node);
      } else if (key == "overrides") {
        if (node.is_map()) {
          read_settings(node, "", OptionLayer::kFile, result_.settings);
        } else if (node.kind != YamlNode::Kind::kNull) {
          fail(node, "overrides is not a map", "write NAME: VALUE, one option a line");
        }
      } else if (key == "trainer_class") {
        result_.notes.push_back(fmt::format("{}: trainer_class has no effect here: model_type decides", node.where));
      } else {
        unknown_key(node, key, kModuleKeys, "options belong under overrides");
      }
    }
  }

  // Before the other keys, whatever their order: it says where presets are and what names mean.
  bool check_framework(const YamlNode& map) {
    const YamlNode* framework = map.find("framework");
    if (!framework || framework->kind == YamlNode::Kind::kNull) return true;
    if (!framework->secret.empty()) {
      collect(result_.errors, [&] { framework->refuse_secret(); });
      return false;
    }
    result_.framework = framework->text;
    if (contains(kFrameworks, framework->text)) return true;
    const fs::path other = megatron_experiment();
    fail(*framework, fmt::format("framework is '{}'", framework->text),
         other.empty() ? "configurations of Primus's megatron and torchtitan frameworks are read; write framework: "
                         "megatron and Megatron's options"
                       : fmt::format("{} model for the megatron framework is {}",
                                     model_of(other) == model_of(file_) ? "the same" : "the nearest", other.string()));
    return false;
  }

  static std::string model_of(const fs::path& path) {
    const std::string stem = lower_case(path.stem().string());
    return stem.substr(0, stem.find('-'));
  }

  // The Primus tree's experiment for this model, else the nearest of its family; for this device if there is one.
  fs::path megatron_experiment() const {
    const fs::path presets = primus_presets();
    if (presets.empty()) return {};
    const std::string model = model_of(file_);
    const size_t family = std::min(model.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), model.size());
    std::error_code code;
    fs::path best;
    size_t best_score = 0;
    const fs::path folder = presets.parent_path().parent_path() / "examples/megatron/configs";
    for (auto at = fs::recursive_directory_iterator(folder, code); at != fs::recursive_directory_iterator();
         at.increment(code)) {
      const fs::path& path = at->path();
      if (path.extension() != ".yaml") continue;
      const std::string other = model_of(path);
      const size_t common = std::ranges::mismatch(model, other).in1 - model.begin();
      if (common < std::max<size_t>(family, 1)) continue;
      const bool is_here = std::ranges::find(path, file_.parent_path().filename()) != path.end();
      const size_t score = 4 * common + (other == model ? 2 : 0) + (is_here ? 1 : 0);
      if (score > best_score || (score == best_score && path < best)) {
        best_score = score;
        best = path;
      }
    }
    return best;
  }

  void read_preset(const std::string& key, const YamlNode& node) {
    if (!node.is_scalar() || node.text.empty()) return fail(node, fmt::format("{} takes a file name", key), "");
    if (!node.secret.empty()) return collect(result_.errors, [&] { node.refuse_secret(); });
    const std::optional<fs::path> path = find_preset(key == "model" ? "models" : "modules", node);
    if (!path) return;
    const YamlDocument document = load(*path);
    if (document.root.is_map()) {
      read_settings(document.root, "", OptionLayer::kPreset, key == "model" ? model_preset_ : trainer_preset_);
    } else if (document.errors.empty() && document.root.kind != YamlNode::Kind::kNull) {
      fail(document.root, "the preset is not a map of options", "write NAME: VALUE, one option a line");
    }
  }

  std::optional<fs::path> find_preset(const std::string& folder, const YamlNode& node) {
    const fs::path name = node.text;
    fs::path short_name = name;
    const std::string framework = result_.framework == "torchtitan" ? "torchtitan" : "megatron";
    if (name.begin() != name.end() && *name.begin() == framework) short_name = name.lexically_relative(framework);
    std::vector<fs::path> places = {file_.parent_path() / name};
    if (const fs::path checkout = primus_presets(); !checkout.empty()) {
      places.push_back(checkout / folder / framework / short_name);
    }
    if (!root_.empty()) {
      for (const fs::path& base : {root_ / folder, root_ / folder / framework}) {
        places.push_back(base / name);
        if (short_name != name) places.push_back(base / short_name);
      }
    }
    std::error_code code;
    for (const fs::path& place : places) {
      for (const fs::path& path : {place, fs::path(place.string() + ".yaml")}) {
        // An experiment may share its preset's name: experiments/demo.yaml with model: demo.yaml.
        if (fs::is_regular_file(path, code) && !fs::equivalent(path, file_, code)) return path.lexically_normal();
      }
    }
    const std::string nearest = root_.empty() ? "" : nearest_preset(root_ / folder, short_name.filename().string());
    std::string message = fmt::format("no preset '{}'", node.text);
    if (!nearest.empty()) message += fmt::format(". Did you mean '{}'?", nearest);
    fail(node, message,
         root_.empty() ? fmt::format("looked beside {}", file_.string())
                       : fmt::format("looked beside {} and in {}", file_.string(), (root_ / folder).string()));
    return std::nullopt;
  }

  // The folder of presets of the Primus tree that the experiment is in, or nothing: its own presets, not ours of the
  // same names, are what the experiment was written for.
  fs::path primus_presets() const {
    std::error_code code;
    for (fs::path at = fs::absolute(file_, code).lexically_normal().parent_path(); at != at.parent_path();
         at = at.parent_path()) {
      if (fs::is_directory(at / "primus" / "configs" / "modules", code)) return at / "primus" / "configs";
    }
    return {};
  }

  static std::string nearest_preset(const fs::path& folder, const std::string& name) {
    std::error_code code;
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, code)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return nearest_word(name, names);
  }

  // Each leaf of a nested map is an option: lora: {dim: 32} is lora.dim.
  void read_settings(const YamlNode& map, const std::string& prefix, OptionLayer layer, std::vector<Setting>& into) {
    for (const auto& [key, node] : map.children) read_setting(prefix + key, node, layer, into);
  }

  void read_setting(const std::string& name, const YamlNode& node, OptionLayer layer, std::vector<Setting>& into) {
    if (node.is_map()) return read_settings(node, name + ".", layer, into);
    collect(result_.errors, [&] { into.push_back({name, node.written(), {layer, node.where}}); });
  }

  static void note_preset_conflicts(const std::vector<Setting>& trainer, const std::vector<Setting>& model,
                                    std::vector<std::string>& notes) {
    for (const Setting& below : trainer) {
      for (const Setting& above : model) {
        if (fold_name(below.name) != fold_name(above.name) || below.value.text() == above.value.text()) continue;
        notes.push_back(fmt::format("{}: {} {} of the model preset is used; the trainer preset has {} ({})",
                                    above.source.where, above.name, above.value.text(), below.value.text(),
                                    below.source.where));
      }
    }
  }

  const fs::path file_, root_;
  const EnvironmentMap& environment_;
  ConfigFile result_;
  std::vector<Setting> trainer_preset_, model_preset_;
};

}  // namespace

ConfigFile read_config_file(const fs::path& file, const fs::path& config_root, const EnvironmentMap& environment) {
  return ConfigReader(file, config_root, environment).read();
}

}  // namespace megalith
