#include "tokenizer/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

struct FoundTemplate {
  std::string source, name;
};

// "chat_template" is a text, or a list of {"name", "template"}, of which "default" is for chat.
std::optional<FoundTemplate> template_of(const Json& config, const std::string& where) {
  const Json* value = find_member(config, "chat_template", where);
  if (value == nullptr) return std::nullopt;
  const std::string name = where + ": chat_template";
  if (!value->is_array()) return FoundTemplate{json_as<std::string>(*value, name), name};
  for (const Json& entry : *value) {
    if (json_get<std::string>(entry, "name", name) != "default") continue;
    return FoundTemplate{json_get<std::string>(entry, "template", name), name};
  }
  throw UserError(fmt::format("{} has several templates, and none is named \"default\"", name),
                  "write the one to train with into a file chat_template.jinja beside it");
}

fs::path template_folder(const fs::path& tokenizer_model) {
  return fs::is_directory(tokenizer_model) ? tokenizer_model : tokenizer_model.parent_path();
}

std::optional<FoundTemplate> find_template(const fs::path& folder) {
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) {
    return FoundTemplate{read_file(path), path.string()};
  }
  const fs::path config = folder / "tokenizer_config.json";
  return fs::exists(config) ? template_of(load_json(config), config.string()) : std::nullopt;
}

JinjaMembers special_tokens_of(const fs::path& folder) {
  JinjaMembers tokens;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / file;
    if (!fs::exists(path)) continue;
    const Json config = load_json(path);
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      const Json* value = find_member(config, key, path.string());
      if (value == nullptr) continue;
      if (std::any_of(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == key; })) continue;
      const std::string what = fmt::format("{}: {}", path.string(), key);
      const auto token =
          value->is_object() ? json_get<std::string>(*value, "content", what) : json_as<std::string>(*value, what);
      tokens.emplace_back(key, JinjaValue(token, nullptr));
    }
  }
  return tokens;
}

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string name, JinjaMembers special_tokens)
    : name_(std::move(name)), special_tokens_(std::move(special_tokens)), template_(source, name_) {
  JinjaBudget budget;
  identity_ = *jinja_to_json(JinjaValue(special_tokens_, nullptr), -1, budget).text() + "\n" + source;
}

std::string ChatTemplate::render(const OrderedJson& messages, const OrderedJson& tools,
                                 bool add_generation_prompt, const OrderedJson* more) const {
  JinjaMembers variables = special_tokens_;
  try {
    if (more != nullptr) {
      for (const auto& [name, value] : more->items()) variables.emplace_back(name, JinjaValue::from_json(value));
    }
    variables.emplace_back("messages", JinjaValue::from_json(messages));
    variables.emplace_back("tools", JinjaValue::from_json(tools));
  } catch (const JinjaFault& fault) {
    throw UserError(fmt::format("the conversation holds {}", fault.message), "leave it out");
  }
  variables.emplace_back("documents", nullptr);
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  try {
    return template_.render(variables);
  } catch (const UserError& error) {
    const auto parts = std::find_if(messages.begin(), messages.end(), [](const OrderedJson& message) {
      return message.is_object() && message.contains("content") && message["content"].is_array();
    });
    if (parts == messages.end()) throw;
    // As in transformers, the template decides what it takes.
    throw UserError(
        fmt::format("{}; the content of message {} is a list of parts ({{\"type\": …}}), which this template "
                    "may not take",
                    error.message(), parts - messages.begin() + 1),
        "give the text itself as content (\"content\": \"…\"), the parts' texts joined, or take a template "
        "that goes over parts");
  }
}

bool ChatTemplate::reads_member(std::string_view word) const {
  for (size_t at = identity_.find(word); at != std::string::npos; at = identity_.find(word, at + 1)) {
    const char before = at == 0 ? ' ' : identity_[at - 1];
    const size_t end = at + word.size();
    const char after = end < identity_.size() ? identity_[end] : ' ';
    if (before == '.' && !is_of_word(after)) return true;
    if ((before == '\'' || before == '"') && after == before) return true;
  }
  return false;
}

bool ChatTemplate::mentions(std::string_view word) const {
  for (size_t at = identity_.find(word); at != std::string::npos; at = identity_.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_of_word(identity_[at - 1]);
    if (begins && (end == identity_.size() || !is_of_word(identity_[end]))) return true;
  }
  return false;
}

bool has_chat_template(const fs::path& tokenizer_model) {
  return !tokenizer_model.empty() && find_template(template_folder(tokenizer_model)).has_value();
}

ChatTemplate load_chat_template(const fs::path& tokenizer_model) {
  const fs::path folder = template_folder(tokenizer_model);
  std::optional<FoundTemplate> found;
  if (!tokenizer_model.empty()) found = find_template(folder);
  if (!found) {
    const std::string what = tokenizer_model.empty() ? "the tokenizer" : folder.empty() ? "." : folder.string();
    throw UserError(fmt::format("{} has no chat template", what),
                    "only models that were trained to chat bring one: take the model's Instruct variant, put a "
                    "chat_template.jinja beside the tokenizer, or train in another form");
  }
  return {std::move(found->source), std::move(found->name), special_tokens_of(folder)};
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view where) {
  parse_json(text, where);  // throws with the reason, and bounds the depth
  return OrderedJson::parse(text);
}

}  // namespace megalith
