// See sft_rows.h.
#include "data/sft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/strings.h"
#include "data/arrow_source.h"
#include "data/text_source.h"
#include "hub/text_files.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLongestRow = size_t{1} << 28;

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

// One file, row by row.
class SftReader::File {
 public:
  File(const PrepareInput& input, const std::optional<std::string>& column)
      : name_(input.name()),
        source_(input.is_rows ? open_rows(input.path, column ? std::vector{*column} : std::vector<std::string>{})
                              : open_text(input.path)) {}

  std::optional<SftLine> next() {
    if (!is_begun_) begin();
    if (is_list_) return next_item();
    while (!is_done_ || !pending_.empty()) {
      const size_t end = pending_.find('\n', searched_);
      if (end == std::string::npos && !is_done_) {
        searched_ = pending_.size();
        fill();
        continue;
      }
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end == std::string::npos ? pending_.size() : end + 1);
      searched_ = 0;
      ++number_;
      if (!trim(line).empty()) return SftLine{name_, number_, std::move(line)};
    }
    return std::nullopt;
  }

 private:
  // Whether the file is a list: its first character that is no blank is a bracket.
  void begin() {
    is_begun_ = true;
    is_list_ = find_mark() == '[';
    if (is_list_) pending_.erase(0, searched_ + 1);
    searched_ = 0;
  }

  // The first character at or behind searched_ that is no blank, which is then there; 0 at the end.
  char find_mark() {
    for (;; ++searched_) {
      if (searched_ == pending_.size() && !fill()) return 0;
      if (!trim(std::string_view(pending_).substr(searched_, 1)).empty()) return pending_[searched_];
    }
  }

  bool fill() {
    std::array<char, 1 << 16> block{};
    const size_t count = source_->read(block);
    is_done_ = count == 0;
    pending_.append(block.data(), count);
    if (pending_.size() > kLongestRow && (is_list_ || pending_.find('\n', searched_) == std::string::npos)) {
      throw UserError(fmt::format("{}:{}: the row is longer than {}", name_, number_ + 1,
                                  format_bytes(static_cast<int64_t>(kLongestRow))),
                      "a row is one JSON object, on a line of its own or in a list: divide it");
    }
    return count > 0;
  }

  // One item at a time, so that no list is in memory whole. What an item holds is for its own reader to judge.
  std::optional<SftLine> next_item() {
    const char first = find_mark();
    if (first == ']' && !is_owed_) {
      ++searched_;
      if (find_mark() != 0) fail_list("goes on behind its end");
      return std::nullopt;
    }
    if (first == 0 || first == ',' || first == ']') fail_list(first == 0 ? "does not end" : "lacks an item");
    const size_t begin = searched_;
    const char end = find_item_end();
    SftLine line{name_, ++number_, std::string(trim(std::string_view(pending_).substr(begin, searched_ - begin)))};
    is_owed_ = end == ',';
    pending_.erase(0, searched_ + (is_owed_ ? 1 : 0));
    searched_ = 0;
    return line;
  }

  // Moves to the comma or bracket behind the item that begins at searched_.
  char find_item_end() {
    bool is_text = false;
    int64_t depth = 0;
    for (;; ++searched_) {
      if (searched_ == pending_.size() && !fill()) fail_list("does not end");
      const char c = pending_[searched_];
      if (is_text) {
        if (c == '\\' && ++searched_ == pending_.size() && !fill()) fail_list("does not end");
        is_text = c != '"';
      } else if (c == '"') {
        is_text = true;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        return c;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (c == ']' || c == '}') {
        --depth;
      }
    }
  }

  [[noreturn]] void fail_list(std::string_view what) const {
    throw UserError(fmt::format("{}: the JSON list {}, behind item {}", name_, what, number_),
                    "see that the file is whole, or give the rows as JSON lines");
  }

  std::string name_, pending_;
  std::unique_ptr<TextSource> source_;
  size_t searched_ = 0;
  int64_t number_ = 0;
  bool is_begun_ = false, is_done_ = false, is_list_ = false;
  bool is_owed_ = false;  // a comma was read, and no item yet
};

SftReader::SftReader(const std::vector<std::string>& paths, const std::optional<std::string>& split,
                     std::optional<std::string> column)
    : inputs_(inputs_of(paths, split, skipped_)), column_(std::move(column)) {}

SftReader::~SftReader() = default;

std::optional<SftLine> SftReader::next() {
  for (;;) {
    if (!file_) {
      if (next_input_ == inputs_.size()) return std::nullopt;
      file_ = std::make_unique<File>(inputs_[next_input_++], column_);
    }
    if (std::optional<SftLine> line = file_->next()) return line;
    file_.reset();
  }
}

}  // namespace megalith
