// See torchtune_values.h.
#include "compat/torchtune_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/file.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr const char* kWords = "command line";
constexpr int kDeepestReference = 8;

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool is_key(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_key_char); }

// Each ${KEY} stands for itself while the file is read: a word may still change what it means.
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

RecipeValues::RecipeValues(const std::filesystem::path& file, const std::vector<std::string>& words,
                           const EnvironmentMap& environment, std::vector<UserError>& errors)
    : file_(file.string()), errors_(errors) {
  try {
    const YamlDocument document = load_yaml(file, kept_references(file, environment));
    errors.insert(errors.end(), document.errors.begin(), document.errors.end());
    if (document.root.is_map()) flatten(document.root, "");
    for (const std::string& word : words) change(word);
    for (auto& [name, value] : values_) replace_keys(value, 0);
  } catch (const UserError& error) {
    errors.push_back(error);
  }
  for (const auto& [name, value] : values_) {
    const FileKey* key = torchtune_keys().find(name);
    if (key == nullptr) {
      const std::string nearest = nearest_word(name, torchtune_keys().names());
      errors.emplace_back(
          fmt::format("{}: recipes of torchtune for fine-tuning have no key '{}'{}", value.where, name,
                      nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
          fmt::format("remove it, also with the word ~{}; options of this program are written --NAME", name));
    } else if (key->kind == FileKeyKind::kRefused && is_given(name) &&
               lower_case(value.written.text()) != key->fallback) {
      errors.emplace_back(
          fmt::format("{}: {} {} is not supported: {}", value.where, name, value.written.text(), key->text),
          fmt::format("remove it, or add the word {}={}", name, key->fallback));
    }
  }
}

void RecipeValues::flatten(const YamlNode& node, const std::string& prefix) {
  for (const auto& [key, child] : node.children) {
    const std::string name = prefix + key;
    if (child.is_map()) {
      flatten(child, name + ".");
      continue;
    }
    try {
      values_[name] = {child.written(), child.where};
    } catch (const UserError&) {
      errors_.emplace_back(
          fmt::format("{}: {} is a list of several, of which this program takes one", child.where, name),
          "write one of them below the key");
    }
  }
}

void RecipeValues::change(const std::string& word) {
  if (word.starts_with('~')) {
    const std::string name = word.substr(1);
    const size_t num_values =
        std::erase_if(values_, [&](const auto& one) { return one.first == name || one.first.starts_with(name + "."); });
    if (num_values > 0) return;
    std::vector<std::string> names;
    for (const auto& [key, value] : values_) {
      names.push_back(key);
      names.push_back(beginning(key));
    }
    const std::string nearest = nearest_word(name, names);
    errors_.emplace_back(fmt::format("{}: {} has no key '{}' to remove{}", word, file_, name,
                                     nearest.empty() ? "" : fmt::format(". Did you mean '~{}'?", nearest)),
                         "leave the word out");
    return;
  }
  const size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  // The component of a section, as in optimizer=torch.optim.SGD.
  const std::string component = name + "._component_";
  if (torchtune_keys().find(name) == nullptr && torchtune_keys().find(component) != nullptr) name = component;
  std::string text = word.substr(equals + 1);
  WrittenValue value = WrittenValue::of(text);
  if (text.starts_with('[')) {
    if (auto items = parse_list(text)) value = {WrittenValue::Form::kList, std::move(*items)};
  } else if (is_null_word(text)) {
    value = WrittenValue::null();
  }
  values_[name] = {std::move(value), kWords};
}

void RecipeValues::replace_keys(RecipeValue& value, int depth) const {
  for (std::string& item : value.written.items) {
    for (size_t at = item.find("${"); at != std::string::npos; at = item.find("${", at)) {
      const size_t end = item.find('}', at);
      const std::string name = end == std::string::npos ? "" : item.substr(at + 2, end - at - 2);
      const auto found = values_.find(name);
      if (found == values_.end() || depth > kDeepestReference) {
        throw UserError(fmt::format("{}: {}: there is no such key", value.where, item.substr(at)),
                        "a recipe's ${KEY} stands for the value of another of its keys");
      }
      RecipeValue meant = found->second;
      replace_keys(meant, depth + 1);
      const bool is_null = meant.written.form == WrittenValue::Form::kNull;
      item.replace(at, end - at + 1, is_null ? "null" : meant.written.text());
    }
  }
}

const RecipeValue* RecipeValues::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

bool RecipeValues::is_given(std::string_view name) const {
  const RecipeValue* value = find(name);
  if (value == nullptr || value->written.form == WrittenValue::Form::kNull) return false;
  return value->written.form != WrittenValue::Form::kText || !is_null_word(value->written.text());
}

std::string RecipeValues::text(std::string_view name, std::string_view fallback) const {
  return is_given(name) ? find(name)->written.text() : std::string(fallback);
}

std::vector<std::string> RecipeValues::items(std::string_view name) const {
  if (!is_given(name)) return {};
  const WrittenValue& written = find(name)->written;
  if (written.form == WrittenValue::Form::kList) return written.items;
  return parse_list(written.text()).value_or(std::vector<std::string>{written.text()});
}

bool RecipeValues::is_on(std::string_view name, bool fallback) const {
  if (!is_given(name)) return fallback;
  const auto value = parse_bool(text(name));
  if (!value) refuse(name, "True or False");
  return *value;
}

int64_t RecipeValues::whole(std::string_view name, int64_t fallback) const {
  if (!is_given(name)) return fallback;
  const auto value = parse_integer(text(name));
  if (!value) refuse(name, "a whole number");
  return *value;
}

double RecipeValues::number(std::string_view name, double fallback) const {
  if (!is_given(name)) return fallback;
  const auto value = parse_number(text(name));
  if (!value) refuse(name, "a number");
  return *value;
}

std::string RecipeValues::said(std::string_view name, std::string_view fallback) const {
  const RecipeValue* value = find(name);
  return fmt::format("{}: {} {}", value == nullptr ? "torchtune's default" : value->where, name,
                     value == nullptr ? fallback : value->written.text());
}

void RecipeValues::refuse(std::string_view name, std::string_view expected, std::string remedy) const {
  throw UserError(fmt::format("{}, but this program takes: {}", said(name), expected), std::move(remedy));
}

}  // namespace megalith
