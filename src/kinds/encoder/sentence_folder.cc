// Source: sentence_transformers/models/{Pooling,Normalize}.py, versions 2 to 5.
#include "kinds/encoder/sentence_folder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModulesFile = "modules.json";

// Either names in a list ("pooling_mode": "mean"), or a boolean per form.
void read_pooling(const fs::path& file, SentenceFolder& folder) {
  constexpr std::pair<std::string_view, Pooling> kForms[] = {
      {"cls", Pooling::kCls}, {"mean", Pooling::kMean}, {"lasttoken", Pooling::kLast}};
  constexpr std::string_view kPrefix = "pooling_mode_";
  const Json json = load_json(file);
  const std::string where = file.string();
  std::vector<std::string> chosen;
  if (const auto word = json_find<std::string>(json, "pooling_mode", where)) {
    chosen.push_back(*word);
  } else {
    if (!json.is_object()) throw UserError(fmt::format("{}: not an object", where));
    for (const auto& [key, value] : json.items()) {
      if (key.starts_with(kPrefix) && json_as<bool>(value, where + ": " + key)) {
        chosen.push_back(key.substr(kPrefix.size()));
      }
    }
  }
  if (chosen.size() == 1) {
    std::string_view word = chosen[0];
    if (word.ends_with("_token")) word.remove_suffix(std::string_view("_token").size());
    if (word.ends_with("_tokens")) word.remove_suffix(std::string_view("_tokens").size());
    for (const auto& [name, form] : kForms) {
      if (word == name) folder.pooling = form;
    }
  }
  if (folder.pooling) return;
  for (const std::string& word : chosen) folder.other_form += (folder.other_form.empty() ? "" : " and ") + word;
  if (chosen.empty()) folder.other_form = "no pooling at all";
}

}  // namespace

std::optional<SentenceFolder> read_sentence_folder(const fs::path& root) {
  const fs::path modules_file = root / kModulesFile;
  if (!fs::exists(modules_file)) return std::nullopt;
  const std::string where = modules_file.string();
  const Json modules = load_json(modules_file);
  if (!modules.is_array()) throw UserError(fmt::format("{}: not a list of modules", where));
  SentenceFolder folder;
  std::string unknown;
  for (const Json& module : modules) {
    const auto type = json_get<std::string>(module, "type", where);
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Pooling") {
      read_pooling(root / json_get_or<std::string>(module, "path", "", where) / "config.json", folder);
    } else if (name == "Normalize") {
      folder.normalises = true;
    } else if (name != "Transformer") {
      unknown = name;
    }
  }
  if (!unknown.empty()) {
    folder.pooling.reset();
    folder.other_form = fmt::format("a module {}", unknown);
  }
  const fs::path length_file = root / "sentence_bert_config.json";
  if (fs::exists(length_file)) {
    folder.max_seq_length = json_find<int64_t>(load_json(length_file), "max_seq_length", length_file.string());
  }
  return folder;
}

}  // namespace megalith
