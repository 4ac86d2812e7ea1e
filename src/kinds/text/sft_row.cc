#include "kinds/text/sft_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/strings.h"
#include "kinds/text/common_text.h"
#include "kinds/text/openai_rows.h"
#include "kinds/text/sft_messages.h"
#include "tokenizer/chat_template.h"

namespace megalith {
namespace {

using Keys = std::vector<std::string_view>;

const Keys kQuestion = {"instruction", "question"}, kAnswer = {"output", "response", "answer", "answers"},
           kInput = {"input", "context"}, kSystem = {"system", "system_prompt"},
           kMessages = {"messages", "conversations", "conversation"};

// Metadata of published sets: keys of rows and messages that are not learned.
bool is_harmless(const std::string& key) {
  static const std::set<std::string_view> kNames = {"id",
                                                    "uuid",
                                                    "guid",
                                                    "idx",
                                                    "index",
                                                    "hash",
                                                    "source",
                                                    "data_source",
                                                    "dataset",
                                                    "dataset_name",
                                                    "origin",
                                                    "category",
                                                    "subcategory",
                                                    "topic",
                                                    "tags",
                                                    "keywords",
                                                    "language",
                                                    "lang",
                                                    "split",
                                                    "license",
                                                    "url",
                                                    "title",
                                                    "domain",
                                                    "difficulty",
                                                    "model",
                                                    "model_name",
                                                    "generator",
                                                    "created_at",
                                                    "timestamp",
                                                    "date",
                                                    "views",
                                                    "avatarUrl",
                                                    "meta",
                                                    "metadata",
                                                    "num_turns",
                                                    "turns",
                                                    "num_tokens",
                                                    "token_count",
                                                    "length",
                                                    "redacted",
                                                    "toxic",
                                                    "openai_moderation",
                                                    "task",
                                                    "task_type",
                                                    "task_name",
                                                    "quality",
                                                    "score_chosen",
                                                    "score_rejected",
                                                    "chosen_score",
                                                    "rejected_score",
                                                    "chosen_model",
                                                    "rejected_model",
                                                    "custom_instruction",
                                                    "skip_prompt_formatting",
                                                    "name",
                                                    "country",
                                                    "state",
                                                    "modality"};
  return kNames.contains(key) || key.ends_with("_id") || key.starts_with("__");
}

std::string keys_text(const OrderedJson& row) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(value.is_null() ? key + " without a value" : key);
  if (keys.size() > 12) keys.resize(12);
  return keys.empty() ? "none" : join(keys, ", ");
}

const OrderedJson* first_of(const OrderedJson& row, const Keys& keys, std::string_view* name = nullptr) {
  for (const std::string_view key : keys) {
    const auto found = row.find(key);
    if (found == row.end() || is_empty_json(*found)) continue;
    if (name != nullptr) *name = key;
    return &*found;
  }
  return nullptr;
}

bool has_any(const OrderedJson& row, const Keys& keys) {
  return std::ranges::any_of(
      keys, [&](std::string_view key) { return row.contains(key) && !row.at(std::string(key)).is_null(); });
}

// Reads a row's keys one by one, so that those left over are known.
class KeyReader {
 public:
  KeyReader(const OrderedJson& row, const SftOptions& options, const std::string& where)
      : row_(row), options_(options), where_(where) {}

  const OrderedJson* take(const Keys& keys, std::string_view* name = nullptr) {
    std::string_view key;
    const OrderedJson* found = first_of(row_, keys, &key);
    if (found != nullptr) taken_.insert(std::string(key));
    if (name != nullptr) *name = key;
    return found;
  }
  std::string take_text(const Keys& keys) {
    std::string_view name;
    const OrderedJson* found = take(keys, &name);
    if (found == nullptr) return "";
    // SQuAD's answers: {"text": [first, …], …}.
    const bool is_squad = found->is_object() && found->contains("text") && found->at("text").is_array();
    if (is_squad && found->at("text").empty()) return "";
    return json_as<std::string>(Json(is_squad ? found->at("text")[0] : *found),
                                fmt::format("{}: {}", where_, name));
  }
  SftMessages take_messages(const Keys& keys) {
    std::string_view name;
    const OrderedJson* found = take(keys, &name);
    return found == nullptr ? SftMessages() : messages_of(*found, name, options_, where_);
  }
  // Some sets repeat another key's value in `key`.
  void drop_if(bool repeats, std::string_view key) {
    if (repeats) taken_.insert(std::string(key));
  }

  void refuse_rest() const {
    std::vector<std::string> rest;
    for (const auto& [key, value] : row_.items()) {
      if (!taken_.contains(key) && is_silent(key, value, options_.sft_ignore_keys)) rest.push_back(key);
    }
    if (rest.empty()) return;
    const std::string names = join(rest, ",");
    throw UserError(fmt::format("{}: nothing reads {} of the row", where_, join(rest, ", ")),
                    fmt::format("--sft_ignore_keys {} passes over {}; the page docs/finetuning.md has the keys of rows",
                                names, rest.size() == 1 ? "it" : "them"));
  }

 private:
  const OrderedJson& row_;
  const SftOptions& options_;
  const std::string& where_;
  std::set<std::string> taken_;
};

std::vector<std::pair<std::string, std::string>> history_of(const OrderedJson* value, const std::string& where) {
  std::vector<std::pair<std::string, std::string>> history;
  if (value == nullptr) return history;
  for (const OrderedJson& turn : list_of(*value, "history", where)) {
    if (!turn.is_array() || turn.size() != 2) throw UserError(where + ": history is no list of [question, answer]");
    const std::string what = where + ": history";
    history.emplace_back(json_as<std::string>(Json(turn[0]), what), json_as<std::string>(Json(turn[1]), what));
  }
  return history;
}

// The question of an instruction's or a prompt's row.
SftTexts take_question(KeyReader& reader, bool is_instruction, const std::string& where) {
  SftTexts texts{.is_instruction = is_instruction};
  texts.system = reader.take_text(kSystem);
  texts.question = reader.take_text(is_instruction ? kQuestion : Keys{"prompt"});
  if (is_instruction) texts.input = reader.take_text(kInput);
  texts.history = history_of(reader.take({"history"}), where);
  return texts;
}

bool begins_with_system(const SftMessages& messages) {
  return !messages.list.empty() && messages.list[0]["role"] == "system";
}

// `rest` after the system's message with which `messages` begins, if it does; `rest` may repeat it.
SftMessages after_system_of(const SftMessages& messages, const SftMessages& rest, const std::string& where) {
  if (!begins_with_system(messages)) return rest;
  const OrderedJson& system = messages.list[0];
  if (begins_with_system(rest)) {
    const OrderedJson& repeated = rest.list[0];
    const bool have_words = system.contains("content") && repeated.contains("content");
    if (have_words && system["content"] == repeated["content"]) return rest;
    throw UserError(where + ": the row has a system and a system's message that differ");
  }
  SftMessages whole;
  whole.list.push_back(system);
  whole.counts.push_back(false);
  whole.add(rest);
  return whole;
}

// The messages before an answer: the system's, where it is apart, and those of `keys`.
SftMessages take_chat(KeyReader& reader, const Keys& keys, const std::string& where) {
  SftMessages apart;
  const std::string system = reader.take_text(kSystem);
  if (!system.empty()) apart.list.push_back({{"role", "system"}, {"content", system}});
  const SftMessages rest = reader.take_messages(keys);
  return after_system_of(apart, rest, where);
}

void check_answer_ends(const SftMessages& messages, const std::string& where) {
  if (messages.list.empty()) throw UserError(where + ": the row has no message", "give the question and the answer");
  check_order(messages.list, where);
  if (messages.list.back()["role"] != "assistant") {
    throw UserError(fmt::format("{} ends with the {}'s message", where,
                                json_as<std::string>(Json(messages.list.back()["role"]), where)),
                    "it ends with the assistant's answer");
  }
}

void read_chat_pair(KeyReader& reader, const OrderedJson& row, const SftOptions& options, const std::string& where,
                    SftRow& read) {
  SftMessages question;
  const OrderedJson* prompt = first_of(row, {"prompt"});
  if (prompt != nullptr && prompt->is_string()) {
    question = messages_of_texts(take_question(reader, /*is_instruction=*/false, where));
    question.list.erase(question.list.size() - 1);  // the answer, which is in the pair
    question.counts.pop_back();
  } else {
    question = take_chat(reader, {"prompt", "conversations", "conversation"}, where);
  }
  for (const char* key : {"chosen", "rejected"}) {
    const SftMessages answer = reader.take_messages({key});
    if (answer.list.empty()) throw UserError(fmt::format("{}: {} has no message", where, key), "give the answer");
    SftMessages whole;
    if (answer.list[0]["role"] == "assistant") {
      whole = question;
      whole.add(answer);
    } else {  // some sets repeat the question in both answers
      whole = after_system_of(question, answer, where);
    }
    check_answer_ends(whole, fmt::format("{}: {}", where, key));
    read.chats.push_back(std::move(whole));
  }
  const OrderedJson &chosen = read.chats[0].list, &rejected = read.chats[1].list;
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
  for (SftMessages& messages : read.chats) std::fill_n(messages.counts.begin(), num_common, false);
  if (const OrderedJson* whole = first_of(row, {"messages"})) {
    reader.drop_if(messages_of(*whole, "messages", options, where).list == read.chats[0].list, "messages");
  }
}

void read_text_pair(KeyReader& reader, const OrderedJson& row, const std::string& where, SftRow& read) {
  SftTexts texts = take_question(reader, has_any(row, kQuestion), where);
  std::string chosen = reader.take_text({"chosen"}), rejected = reader.take_text({"rejected"});
  if (chosen == rejected) {
    throw UserError(where + ": chosen and rejected are the same text", "they differ in the answer");
  }
  if (texts.question.empty()) {
    // As TRL extracts it: the common prefix, without a blank before the difference.
    size_t size = common_beginning(chosen, rejected);
    if (size > 0 && chosen[size - 1] == ' ') --size;
    if (size == 0) {
      throw UserError(
          fmt::format("{}: the row has chosen and rejected as texts, which begin differently, and no prompt", where),
          "give the question as prompt, or the answers as lists of messages");
    }
    texts.question = chosen.substr(0, size);
    chosen.erase(0, size);
    rejected.erase(0, size);
  }
  read.texts = {texts, texts};
  read.texts[0].answer = std::move(chosen);
  read.texts[1].answer = std::move(rejected);
}

bool is_list_or_object(const OrderedJson& row, const char* key) {
  return row.contains(key) && row[key].is_structured();
}

// TRL's conversational prompt and completion.
void read_chat_completion(KeyReader& reader, const std::string& where, SftRow& read) {
  SftMessages messages = take_chat(reader, {"prompt"}, where);
  messages.counts.assign(messages.counts.size(), false);
  messages.add(reader.take_messages({"completion"}));
  check_answer_ends(messages, where);
  read.form = SftForm::kChat;
  read.chats = {std::move(messages)};
}

void read_chat(KeyReader& reader, const OrderedJson& row, const SftOptions& options, const std::string& where,
               SftRow& read) {
  SftMessages messages = take_chat(reader, kMessages, where);
  check_order(messages.list, where);
  const OrderedJson* prompt = first_of(row, {"prompt"});
  reader.drop_if(prompt != nullptr && std::ranges::any_of(messages.list,
                                                          [&](const OrderedJson& message) {
                                                            return message["role"] == "user" &&
                                                                   message.contains("content") &&
                                                                   message["content"] == *prompt;
                                                          }),
                 "prompt");
  read.chats = {std::move(messages)};
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
    case SftForm::kRated:
      return "rated answers";
    case SftForm::kTokens:
      return "tokens";
  }
  throw InternalError("a form without a name");
}

bool is_silent(const std::string& key, const OrderedJson& value, const std::vector<std::string>& ignored) {
  return !is_empty_json(value) && !is_harmless(key) && std::ranges::count(ignored, key) == 0;
}

namespace {

// True, false, 1, 0, and as texts, which is what CSV files have; unset: no rating.
std::optional<bool> rating_of(const OrderedJson& value) {
  if (value.is_boolean()) return value == true;
  if (!value.is_string() && !value.is_number_integer()) return std::nullopt;
  const std::string text = lower_case(value.is_string() ? json_as<std::string>(Json(value), "a rating") : value.dump());
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

// KTO's key of a row with a rated answer; "" for other rows.
std::string rating_key(const OrderedJson& row, const std::string& where) {
  for (const char* key : {"label", "kto_tag"}) {
    if (!row.contains(key) || row[key].is_null()) continue;
    if (rating_of(row[key])) return key;
    throw UserError(fmt::format("{}: {} is {}, and rates an answer", where, key, row[key].dump().substr(0, 100)),
                    fmt::format("a rating is true or false, 1 or 0; --sft_ignore_keys {} passes over it", key));
  }
  return "";
}

// But for the rating.
SftForm form_by_keys(const OrderedJson& row, const std::string& where) {
  const auto has = [&](const char* key) { return has_any(row, {key}); };
  if (has("input_ids")) return SftForm::kTokens;
  if (has("chosen") && has("rejected")) return SftForm::kPairs;
  if (has_any(row, kMessages)) return SftForm::kChat;
  if (has_any(row, kQuestion) && has_any(row, kAnswer)) return SftForm::kAlpaca;
  if (has("prompt") && has("completion")) return SftForm::kPrompt;
  if (has("text")) return SftForm::kText;
  throw UserError(fmt::format("{}: the row has the keys of no form (its keys: {})", where, keys_text(row)),
                  "rows have messages; conversations; instruction and output; prompt and completion; prompt, chosen "
                  "and rejected; text; input_ids; or the key that --sft_column names. --sft_rename_keys reads other names "
                  "as these");
}

}  // namespace

SftForm sft_form_of(const OrderedJson& row, const std::optional<std::string>& column, const std::string& where) {
  if (!row.is_object()) throw UserError(fmt::format("{}: the row is no JSON object", where));
  if (column) {
    if (has_any(row, {*column})) return SftForm::kText;
    throw UserError(fmt::format("{}: the row has no {} (its keys: {})", where, *column, keys_text(row)),
                    "sft_column names the key of the text");
  }
  const SftForm form = form_by_keys(row, where);
  const std::string key = rating_key(row, where);
  if (key.empty()) return form;
  if (has_questions(form) && form != SftForm::kPairs) return SftForm::kRated;
  throw UserError(fmt::format("{}: {} rates an answer, and the row has {}", where, key, sft_form_name(form)),
                  "a rated row has a question and one answer: prompt and completion, or messages");
}

namespace {

// An empty answer teaches the model to say nothing; one that is to become less likely may be empty.
void check_answers(const SftRow& row, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw UserError(fmt::format("{}: {} is empty", where, what),
                    "give it words, or leave such rows out: --skip_bad_rows N");
  };
  if (row.is_bad || row.form == SftForm::kText) return;
  if (!row.texts.empty() && row.texts[0].answer.empty()) refuse("the answer");
  if (row.chats.empty()) return;
  const SftMessages& chat = row.chats[0];
  for (size_t i = 0; i < chat.list.size(); ++i) {
    const OrderedJson& message = chat.list[i];
    bool says_nothing = true;
    for (const auto& [key, value] : message.items()) {
      says_nothing = says_nothing && (key == "role" || key == "name" || is_empty_json(value));
    }
    if (chat.counts[i] && says_nothing) refuse(fmt::format("the answer in message {}", i + 1));
  }
}

}  // namespace

SftRow read_sft_row(const OrderedJson& written, const SftOptions& options, const std::string& where) {
  OrderedJson own;
  const bool is_written = options.sft_rename_keys.empty() && options.sft_ignore_keys.empty();
  const OrderedJson& named = is_written ? written : own = renamed(written, options, /*is_message=*/false, where);
  const OrderedJson& row = has_openai_keys(named) ? own = in_usual_keys(named, options, where) : named;
  SftRow read;
  KeyReader reader(row, options, where);
  read.form = sft_form_of(row, options.sft_column, where);
  const bool is_rated = read.form == SftForm::kRated;
  if (is_rated) {
    const std::string key = rating_key(row, where);
    reader.drop_if(true, key);
    read.is_bad = !rating_of(row[key]).value_or(true);
    read.form = form_by_keys(row, where);
  }
  if (read.form == SftForm::kText) {
    read.texts = {{.answer = reader.take_text({options.sft_column.value_or("text")})}};
    if (options.sft_column) return read;  // other columns were not asked for
  } else if (read.form == SftForm::kTokens) {
    const auto take = [&](const char* key) -> const OrderedJson* {
      const auto found = row.find(key);
      reader.drop_if(true, key);
      return found == row.end() || found->is_null() ? nullptr : &*found;
    };
    read.tokens = tokens_of({.input_ids = take("input_ids"),
                             .labels = take("labels"),
                             .attention_mask = take("attention_mask"),
                             .completion_mask = take("completion_mask"),
                             .assistant_masks = take("assistant_masks")},
                            where);
  } else if (read.form == SftForm::kPairs) {
    const bool is_chat = is_list_or_object(row, "chosen") || is_list_or_object(row, "rejected");
    is_chat ? read_chat_pair(reader, row, options, where, read) : read_text_pair(reader, row, where, read);
  } else if (read.form == SftForm::kChat) {
    read_chat(reader, row, options, where, read);
  } else if (is_list_or_object(row, "prompt") || is_list_or_object(row, "completion")) {
    read_chat_completion(reader, where, read);
  } else {
    const bool is_alpaca = read.form == SftForm::kAlpaca;
    SftTexts texts = take_question(reader, is_alpaca, where);
    texts.answer = reader.take_text(is_alpaca ? kAnswer : Keys{"completion"});
    // Stanford Alpaca's rows also have the whole as a text.
    if (is_alpaca && has_any(row, {"text"})) {
      const auto whole = json_as<std::string>(Json(row["text"]), where + ": text");
      reader.drop_if(whole.ends_with(texts.answer) && whole.find(texts.question) != std::string::npos, "text");
    }
    read.texts = {std::move(texts)};
  }
  if (!read.chats.empty()) {
    const bool is_share_gpt =
        std::ranges::any_of(read.chats, [](const SftMessages& chat) { return chat.is_share_gpt; });
    read.tools = tools_of(reader.take({"tools"}), is_share_gpt, where);
    if (const auto parallel = row.find("parallel_tool_calls"); parallel != row.end() && !parallel->is_null()) {
      reader.drop_if(true, "parallel_tool_calls");
      check_parallel_calls(*parallel, read, where);
    }
    if (const OrderedJson* variables = reader.take({"chat_template_kwargs"})) {
      const std::string what = where + ": chat_template_kwargs";
      read.variables = *variables;
      // Parquet files have them as a text, as they have tools.
      if (variables->is_string()) {
        read.variables = parse_ordered_json(json_as<std::string>(Json(*variables), what), what);
      }
      if (!read.variables.is_object()) {
        throw UserError(what + " is no object", "give a JSON object of the template's variables, or its text");
      }
    }
  }
  reader.refuse_rest();
  if (is_rated || read.form == SftForm::kPairs) {
    for (SftTexts& texts : read.texts) texts.learns_history = false;
  }
  if (options.sft_drop_system) {
    for (SftTexts& texts : read.texts) texts.system.clear();
    for (SftMessages& chat : read.chats) {
      if (!begins_with_system(chat)) continue;
      chat.list.erase(0);
      chat.counts.erase(chat.counts.begin());
    }
  }
  if (is_rated) {
    read.form = SftForm::kRated;
    // The last answer is rated.
    for (SftMessages& chat : read.chats) {
      check_answer_ends(chat, where);
      std::fill_n(chat.counts.begin(), chat.counts.size() - 1, false);
    }
  }
  check_answers(read, where);
  return read;
}

SftMessages messages_of_texts(const SftTexts& texts) {
  SftMessages messages;
  const auto add = [&](const char* role, const std::string& content, bool counts) {
    messages.list.push_back({{"role", role}, {"content", content}});
    messages.counts.push_back(counts);
  };
  if (!texts.system.empty()) add("system", texts.system, false);
  for (const auto& [question, answer] : texts.history) {
    add("user", question, false);
    add("assistant", answer, texts.learns_history);
  }
  add("user", texts.question + (texts.input.empty() ? "" : "\n\n" + texts.input), false);
  add("assistant", texts.answer, true);
  return messages;
}

}  // namespace megalith
