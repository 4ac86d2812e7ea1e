#include "compat/torchtune_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr const char* kWords = "command line";
constexpr std::string_view kDataset = "dataset.";
constexpr int kDeepestReference = 8;

constexpr FileTrainer kTorchtune = {
    .name = "torchtune",
    .assigns = " ",
    .takes = "this program takes",
    .switch_values = "True or False",
    .unknown = "recipes of torchtune for fine-tuning have no key '{key}'",
    .unknown_remedy = "remove it, also with the word ~{key}; options of this program are written --NAME",
    .refused_remedy = "remove it, or add the word {key}={unset}",
    .has_null = true,
    .component_remedy = "no other component has a counterpart here; name one of these, in the file or with a word"};

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool is_key(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_key_char); }

// Leaves each ${KEY} in place while reading: a word may still change it.
EnvironmentMap kept_references(const std::filesystem::path& file, const EnvironmentMap& environment) {
  EnvironmentMap kept = environment;
  const std::string text = read_file(file);
  for (size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at + 1)) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) break;
    const std::string name = text.substr(at + 2, end - at - 2);
    if (is_key(name)) kept[name] = text.substr(at, end - at + 1);
  }
  return kept;
}

std::string beginning(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

}  // namespace

bool is_recipe_word(std::string_view word) {
  if (word.starts_with('~')) return is_key(word.substr(1));
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals);
  return is_key(name) && (torchtune_keys().find(name) != nullptr || torchtune_keys().is_section(beginning(name)));
}

RecipeWords::RecipeWords(const std::filesystem::path& file, const std::vector<std::string>& words,
                         const std::filesystem::path& config_root, const EnvironmentMap& environment)
    : FileWords(torchtune_keys(), kTorchtune, config_root, environment), file_(file.string()) {
  try {
    const YamlDocument document = load_yaml(file, kept_references(file, environment));
    result.errors = document.errors;
    result.notes = document.notes;
    if (document.root.is_map()) flatten("", document.root);
    for (const std::string& word : words) change(word);
    for (auto& [name, value] : words_) replace_keys(value, 0);
    for (size_t i = 1; i < sets_.size(); ++i) {
      take_set(i);
      check_keys(kDataset);
    }
    take_set(0);
  } catch (const UserError& error) {
    result.errors.push_back(error);
  }
  check_keys();
}

void RecipeWords::take_list(const std::string& name, const YamlNode& node) {
  const bool are_maps = std::ranges::all_of(node.items, [](const YamlNode& item) { return item.is_map(); });
  if (name != "dataset" || !are_maps) return FileWords::take_list(name, node);
  sets_ = node.items;
  flatten(name, sets_[0]);
}

void RecipeWords::take_set(size_t index) {
  if (sets_.empty()) return;
  std::map<std::string, FileWord, std::less<>> of_all = words_;
  std::erase_if(of_all, [](const auto& one) { return one.first.starts_with(kDataset) && one.second.where != kWords; });
  words_.clear();
  flatten("dataset", sets_[index]);
  std::swap(words_, of_all);
  for (auto& [name, word] : of_all) {
    replace_keys(word, 0);
    words_.try_emplace(name, std::move(word));
  }
}

void RecipeWords::change(const std::string& word) {
  if (word.starts_with('~')) {
    const std::string name = word.substr(1);
    const size_t num_values =
        std::erase_if(words_, [&](const auto& one) { return one.first == name || one.first.starts_with(name + "."); });
    if (num_values > 0) return;
    std::vector<std::string> names;
    for (const auto& [key, value] : words_) {
      names.push_back(key);
      names.push_back(beginning(key));
    }
    const std::string nearest = nearest_word(name, names);
    fail(fmt::format("{}: {} has no key '{}' to remove{}", word, file_, name,
                     nearest.empty() ? "" : fmt::format(". Did you mean '~{}'?", nearest)),
         "leave the word out");
    return;
  }
  const size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  // A section name means its component, as in optimizer=torch.optim.SGD.
  const std::string component = name + "._component_";
  if (torchtune_keys().find(name) == nullptr && torchtune_keys().find(component) != nullptr) name = component;
  std::string text = word.substr(equals + 1);
  WrittenValue value = WrittenValue::of(text);
  if (text.starts_with('[')) {
    if (auto items = parse_list(text)) value = {WrittenValue::Form::kList, std::move(*items)};
  } else if (is_null_word(text)) {
    value = WrittenValue::null();
  }
  words_[name] = {std::move(value), kWords, name};
}

void RecipeWords::replace_keys(FileWord& value, int depth) const {
  for (std::string& item : value.written.items) {
    for (size_t at = item.find("${"); at != std::string::npos; at = item.find("${", at)) {
      const size_t end = item.find('}', at);
      const std::string name = end == std::string::npos ? "" : item.substr(at + 2, end - at - 2);
      const auto found = words_.find(name);
      if (found == words_.end() || depth > kDeepestReference) {
        throw UserError(fmt::format("{}: {}: there is no such key", value.where, item.substr(at)),
                        "a recipe's ${KEY} stands for the value of another of its keys");
      }
      FileWord meant = found->second;
      replace_keys(meant, depth + 1);
      const bool is_null = meant.written.form == WrittenValue::Form::kNull;
      item.replace(at, end - at + 1, is_null ? "null" : meant.written.text());
    }
  }
}

}  // namespace megalith
