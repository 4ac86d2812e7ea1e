// See file_words.h.
#include "compat/file_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/known_names.h"
#include "config/presets.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kComponent = "._component_";

bool is_null(const WrittenValue& value) {
  return value.form == WrittenValue::Form::kNull ||
         (value.form == WrittenValue::Form::kText && is_null_word(value.text()));
}

}  // namespace

const FileWord* FileWords::find(std::string_view name) const {
  const auto found = words_.find(sayer(name));
  return found == words_.end() ? nullptr : &found->second;
}

bool FileWords::is_written(std::string_view name) const {
  const FileWord* word = find(name);
  return word != nullptr && !(trainer_.has_null && is_null(word->written));
}

std::string FileWords::written_text(std::string_view name) const {
  const FileWord* word = find(name);
  if (is_written(name)) return trainer_.has_null ? word->written.text() : join(word->written.items, ",");
  const FileKey* key = keys_.find(name);
  return key == nullptr || (trainer_.has_null && is_null_word(key->fallback)) ? "" : key->fallback;
}

std::optional<std::string> FileWords::value_of(std::string_view name) const {
  const std::string text = written_text(name);
  return name.ends_with(kComponent) ? text.substr(text.rfind('.') + 1) : text;
}

std::vector<std::string> FileWords::items(std::string_view name) const {
  const FileWord* word = find(name);
  if (word != nullptr && word->written.form == WrittenValue::Form::kList) return word->written.items;
  const std::string value = text(name);
  if (!value.starts_with('[')) return {value};
  return parse_list(value).value_or(std::vector<std::string>{value});
}

std::string FileWords::said(std::string_view name) const {
  const FileWord* word = find(name);
  if (word != nullptr) {
    const std::string text = trainer_.has_null ? word->written.text() : join(word->written.items, ",");
    return fmt::format("{}: {}{}{}", word->where, word->key, trainer_.assigns, text);
  }
  const FileKey* key = keys_.find(sayer(name));
  return fmt::format("{}'s default: {}{}{}", trainer_.name, sayer(name), trainer_.assigns,
                     key == nullptr ? "" : key->fallback);
}

void FileWords::refuse(std::string_view word, std::string_view expected, std::string remedy) const {
  if (remedy.empty() && sayer(word).ends_with(kComponent)) remedy = trainer_.component_remedy;
  throw UserError(fmt::format("{}, but {}: {}", said(word), trainer_.takes, expected), std::move(remedy));
}

void FileWords::set(std::string_view word, std::string option, WrittenValue value) {
  const FileWord* said = find(word);
  result.settings.push_back({std::move(option),
                             std::move(value),
                             {said != nullptr ? OptionLayer::kFile : OptionLayer::kPreset,
                              said != nullptr ? said->where : fmt::format("{}'s {}", trainer_.name, sayer(word))}});
}

void FileWords::set(std::string_view word, std::string option, std::string value) {
  if (option == "preset") return take_preset(value);
  set(word, std::move(option), WrittenValue::of(std::move(value)));
}

ConfigFile FileWords::read_preset(const std::string& name) const {
  return read_config_file(find_config(name, root_), root_, environment_);
}

void FileWords::take_preset(const std::string& name) {
  for (Setting& setting : read_preset(name).settings) {
    setting.source.layer = OptionLayer::kPreset;
    result.settings.push_back(std::move(setting));
  }
}

void FileWords::add(const std::string& name, FileWord word) {
  const FileKey* known = keys_.find(name);
  const bool is_alias = known != nullptr && known->kind == FileKeyKind::kAlias;
  const std::string& own = is_alias ? known->text : name;
  // Files list keys that they leave empty, beside the alias that has the value.
  if (is_written(own) && (is_alias || (trainer_.has_null && is_null(word.written)))) return;
  words_.insert_or_assign(own, std::move(word));
}

void FileWords::flatten(const std::string& name, const YamlNode& node) {
  if (node.is_map()) {
    for (const auto& [key, child] : node.children) flatten(name.empty() ? key : name + "." + key, child);
    return;
  }
  const bool has_maps =
      std::any_of(node.items.begin(), node.items.end(), [](const YamlNode& item) { return item.is_map(); });
  if (has_maps) return take_list(name, node);
  try {
    add(name, {node.written(), node.where, name});
  } catch (const UserError& error) {
    result.errors.push_back(error);
  }
}

void FileWords::take_list(const std::string& name, const YamlNode& node) {
  fail(fmt::format("{}: {} is a list of several, of which this program takes one", node.where, name),
       "write one of them below the key");
}

void FileWords::check_keys(std::string_view beginning) {
  for (const auto& [name, word] : words_) {
    if (!name.starts_with(beginning)) continue;
    const FileKey* key = keys_.find(name);
    if (key == nullptr && trainer_.unknown.empty()) continue;
    if (key == nullptr) {
      const std::string nearest = nearest_word(name, keys_.names());
      fail(fmt::format("{}: {}{}", word.where, fmt::format(fmt::runtime(trainer_.unknown), fmt::arg("key", name)),
                       nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
           fmt::format(fmt::runtime(trainer_.unknown_remedy), fmt::arg("key", name)));
    } else if (key->kind == FileKeyKind::kRefused && is_written(name) &&
               lower_case(written_text(name)) != lower_case(key->fallback)) {
      fail(fmt::format("{} is not supported: {}", said(name), key->text),
           fmt::format(fmt::runtime(trainer_.refused_remedy), fmt::arg("key", name), fmt::arg("unset", key->fallback)));
    }
  }
}

void FileWords::apply_all(const std::vector<std::function<void()>>& rules) {
  for (const auto& rule : rules) {
    try {
      rule();
    } catch (const UserError& error) {
      result.errors.push_back(error);
    }
  }
}

void FileWords::take_options() {
  for (const FileKey& key : keys_.all()) {
    if (key.kind != FileKeyKind::kOption || (trainer_.has_null && !is_written(key.name))) continue;
    const FileWord* word = find(key.name);
    trainer_.has_null ? set(key.name, key.text, word->written) : set(key.name, key.text, text(key.name));
  }
  for (const auto& [name, word] : words_) {
    if (keys_.find(name) != nullptr || !is_written(name)) continue;
    // Options are also found by the end of a name: deepspeed.stage would be stage.
    const bool is_below = name.find('.') != std::string::npos && find_known_name(name) == nullptr;
    is_below ? fail(fmt::format("{}: nothing here reads {}", word.where, name), "remove it")
             : set(name, name, word.written);
  }
}

void FileWords::name_useless_keys(const std::string& file, const std::function<bool(const std::string&)>& is_shown) {
  std::vector<std::string> names;
  for (const auto& [name, word] : words_) {
    const FileKey* key = keys_.find(name);
    if (key != nullptr && key->kind == FileKeyKind::kNoEffect && is_shown(name)) names.push_back(word.key);
  }
  if (names.empty()) return;
  note(fmt::format("{}: without a counterpart here, and so without effect: {}", file, join(names, ", ")));
}

}  // namespace megalith
