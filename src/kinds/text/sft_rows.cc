// See sft_rows.h.
#include "kinds/text/sft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/strings.h"
#include "data/arrow_source.h"
#include "hub/text_files.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLongestRow = int64_t{1} << 28;

std::vector<PrepareInput> inputs_of(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                                    std::vector<std::string>& skipped) {
  std::vector<PrepareInput> all;
  for (const std::string& path : paths) {
    std::vector<PrepareInput> found = find_inputs({path}, /*all_plain=*/false, &skipped);
    if (split && fs::is_directory(path)) {
      std::erase_if(found, [&](const PrepareInput& input) {
        return !is_of_split(fs::path(input.path).lexically_relative(path).generic_string(), *split);
      });
      if (found.empty()) {
        throw UserError(fmt::format("{} holds no file of the split {}", path, *split),
                        "sft_dataset_split is the word that the names of its files or folders begin with");
      }
    }
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

std::string keys_text(const OrderedJson& row) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  if (keys.size() > 12) keys.resize(12);
  return keys.empty() ? "none" : join(keys, ", ");
}

std::string role_of(const OrderedJson& message, const std::string& where) {
  if (!message.is_object()) throw UserError(fmt::format("{}: a message is no object", where));
  const bool is_share_gpt = message.contains("from");
  const char* key = is_share_gpt ? "from" : "role";
  if (!message.contains(key)) {
    throw UserError(fmt::format("{}: a message has no role (its keys: {})", where, keys_text(message)),
                    "a message is {\"role\": …, \"content\": …}, or ShareGPT's {\"from\": …, \"value\": …}");
  }
  return json_as<std::string>(Json(message[key]), fmt::format("{}: {}", where, key));
}

// ShareGPT's speakers, and the roles of chat templates.
std::string known_role(const std::string& name, const std::string& where) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kRoles = {
      {{"system", "system"},
       {"developer", "system"},
       {"user", "user"},
       {"human", "user"},
       {"assistant", "assistant"},
       {"gpt", "assistant"},
       {"bot", "assistant"},
       {"model", "assistant"},
       {"chatgpt", "assistant"},
       {"function_call", "assistant"},
       {"tool", "tool"},
       {"observation", "tool"},
       {"ipython", "ipython"},
       {"function", "tool"}}};
  for (const auto& [word, role] : kRoles) {
    if (word == name) return std::string(role);
  }
  throw UserError(fmt::format("{}: the role '{}' is not known", where, name),
                  "roles are system, user, assistant and tool; ShareGPT's system, human, gpt and tool");
}

void check_order(const OrderedJson& messages, const std::string& where) {
  std::string before;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto role = json_as<std::string>(Json(messages[i]["role"]), where);
    const bool begins = before.empty() || before == "system";
    const bool is_tool = role == "tool" || role == "ipython";
    const bool fits = role == "system"      ? begins
                      : role == "user"      ? before != "user"
                      : role == "assistant" ? !begins && before != "assistant"
                                            : is_tool && !begins && before != "user";
    if (!fits) {
      throw UserError(fmt::format("{}: message {} is the {}'s behind {}", where, i + 1, role,
                                  before.empty() ? "nothing" : fmt::format("the {}'s", before)),
                      "a conversation is the system's message, or none, and then the user's and the assistant's by "
                      "turns; tools answer the assistant");
    }
    before = role;
  }
}

}  // namespace

std::string_view sft_form_name(SftForm form) {
  switch (form) {
    case SftForm::kText:
      return "texts";
    case SftForm::kAlpaca:
      return "instructions (instruction, input, output)";
    case SftForm::kPrompt:
      return "prompts and completions";
    case SftForm::kChat:
      return "conversations";
    case SftForm::kPairs:
      return "pairs of answers";
  }
  throw InternalError("a form without a name");
}

std::string SftLine::where() const { return fmt::format("{}:{}", file, number); }

std::span<const std::string_view> sft_question_keys() {
  static constexpr std::array<std::string_view, 2> kKeys = {"instruction", "question"};
  return kKeys;
}

std::span<const std::string_view> sft_answer_keys() {
  static constexpr std::array<std::string_view, 3> kKeys = {"output", "response", "answer"};
  return kKeys;
}

std::optional<std::string> sft_key_of(const OrderedJson& row, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (row.contains(key) && !row[std::string(key)].is_null()) return std::string(key);
  }
  return std::nullopt;
}

SftForm sft_form_of(const OrderedJson& row, const std::optional<std::string>& column, const std::string& where) {
  if (!row.is_object()) throw UserError(fmt::format("{}: the row is no JSON object", where));
  const auto has = [&](const char* key) { return row.contains(key) && !row[key].is_null(); };
  if (column) {
    if (has(column->c_str())) return SftForm::kText;
    throw UserError(fmt::format("{}: the row has no {} (its keys: {})", where, *column, keys_text(row)),
                    "sft_column names the key of the text");
  }
  if (has("chosen") && has("rejected")) return SftForm::kPairs;
  if (has("messages") || has("conversations")) return SftForm::kChat;
  if (sft_key_of(row, sft_question_keys()) && sft_key_of(row, sft_answer_keys())) return SftForm::kAlpaca;
  if (has("prompt") && has("completion")) return SftForm::kPrompt;
  if (has("text")) return SftForm::kText;
  throw UserError(fmt::format("{}: the row has the keys of no form (its keys: {})", where, keys_text(row)),
                  "rows have messages; conversations; instruction and output; prompt and completion; prompt, chosen "
                  "and rejected; text; or the key that --sft_column names");
}

namespace {

OrderedJson messages_of(const OrderedJson& list, std::string_view key, const std::string& where) {
  if (!list.is_array() || list.empty()) throw UserError(fmt::format("{}: {} is no list of messages", where, key));
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& message : list) {
    const std::string role = known_role(role_of(message, where), where);
    OrderedJson made = message;
    if (message.contains("from")) {
      made = {{"role", role}, {"content", message.contains("value") ? message["value"] : OrderedJson(nullptr)}};
    } else {
      made["role"] = role;
    }
    const bool has_words = made.contains("content") && !made["content"].is_null();
    if (!has_words && !made.contains("tool_calls")) {
      throw UserError(fmt::format("{}: the {}'s message has no content", where, role));
    }
    messages.push_back(std::move(made));
  }
  return messages;
}

}  // namespace

OrderedJson sft_messages_of(const OrderedJson& row, const std::string& where) {
  const char* key = row.contains("messages") && !row["messages"].is_null() ? "messages" : "conversations";
  OrderedJson messages = messages_of(row[key], key, where);
  check_order(messages, where);
  return messages;
}

bool is_chat_pair(const OrderedJson& row) { return row["chosen"].is_array() || row["rejected"].is_array(); }

OrderedJson sft_pair_of(const OrderedJson& row, const std::string& where) {
  OrderedJson question = OrderedJson::array();
  const bool has_prompt = row.contains("prompt") && !row["prompt"].is_null();
  if (has_prompt && row["prompt"].is_string()) {
    question.push_back({{"role", "user"}, {"content", row["prompt"]}});
  } else if (has_prompt) {
    question = messages_of(row["prompt"], "prompt", where);
  }
  const auto conversation = [&](const char* key) {
    const OrderedJson answer = messages_of(row[key], key, where);
    // Some sets repeat the question in both answers.
    OrderedJson all = answer[0]["role"] == "assistant" ? question : OrderedJson::array();
    for (const OrderedJson& message : answer) all.push_back(message);
    check_order(all, fmt::format("{}: {}", where, key));
    if (all.back()["role"] != "assistant") {
      throw UserError(fmt::format("{}: {} ends with the {}'s message", where, key,
                                  json_as<std::string>(Json(all.back()["role"]), where)),
                      "it ends with the assistant's answer");
    }
    return all;
  };
  OrderedJson chosen = conversation("chosen"), rejected = conversation("rejected");
  const size_t most = std::min(chosen.size(), rejected.size());
  size_t num_common = 0;
  while (num_common < most && chosen[num_common] == rejected[num_common]) ++num_common;
  if (num_common == most) {
    throw UserError(
        fmt::format("{}: chosen and rejected are the same conversation, or one is the other's beginning", where),
        "they differ in the answer");
  }
  if (num_common == 0) {
    throw UserError(fmt::format("{}: chosen and rejected have no question in common", where),
                    "give it as prompt, or as the messages that both begin with");
  }
  return {{"chosen", std::move(chosen)}, {"rejected", std::move(rejected)}, {"num_common", num_common}};
}

SftReader::SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                     std::optional<std::string> column)
    : inputs_(inputs_of(paths, split, skipped_)), column_(std::move(column)) {}

std::optional<SftLine> SftReader::next() {
  for (;;) {
    if (!rows_) {
      if (next_input_ == inputs_.size()) return std::nullopt;
      const PrepareInput& input = inputs_[next_input_++];
      const auto columns = column_ ? std::vector{*column_} : std::vector<std::string>{};
      rows_.emplace(input.is_rows ? open_rows(input.path, columns) : open_text(input.path), input.name(), kLongestRow);
    }
    if (std::optional<std::string> row = rows_->next()) return SftLine{rows_->name(), rows_->number(), std::move(*row)};
    bytes_before_ += inputs_[next_input_ - 1].bytes;
    rows_.reset();
  }
}

}  // namespace megalith
