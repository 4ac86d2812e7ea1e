// Chatting with a model tuned on conversations: messages in, the text of its answer out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace megalith {

// Marks around a model's reasoning and its tool calls.
inline constexpr std::string_view kThinkBegin = "<think>", kThinkEnd = "</think>";
inline constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>";

// Number of characters at the end of `text` that may begin `mark`.
size_t unfinished(std::string_view text, std::string_view mark);

class ChatFormat {
 public:
  // tokenizer_model  as load_chat_template(); UserError without a template. The tokenizer must outlive it.
  ChatFormat(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_model);

  // The prompt for an answer: ends with the template's generation prompt.
  std::vector<int64_t> prompt_ids(const OrderedJson& messages, const OrderedJson& tools) const;
  // True if the prompt ends within <think>, where the answer then begins.
  bool opens_thinking(std::span<const int64_t> prompt_ids) const;
  // The special token with which the template ends an answer, which may differ from the model's end of text; empty if
  // it writes none.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }

 private:
  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::vector<int64_t> stop_ids_;
};

// Rows give a call's arguments as an object or as its text, and words beside the call, none, or null. Templates differ
// in what they take: the messages in the form that this one writes; unchanged if it takes them as they are, or no form.
OrderedJson with_readable_calls(const ChatTemplate& chat, const OrderedJson& messages, const OrderedJson& tools,
                                const OrderedJson* variables = nullptr);

// Rows call a message's thoughts reasoning_content, thinking or reasoning, and each template reads one of them:
// messages with the name that this one reads; unchanged if it reads theirs, or none.
OrderedJson with_readable_thoughts(const ChatTemplate& chat, const OrderedJson& messages);

// UserError unless it is a list of objects with role and content (or tool_calls).
void check_messages(const OrderedJson& messages, const std::string& where);

// For a text that would end every answer before it begins.
std::optional<UserError> check_stop_texts(const std::vector<std::string>& stop_texts);

// The text of an answer as it is written. Withholds parts of characters, and what may become one of the stop texts.
class AnswerText {
 public:
  // before  ids ahead of the answer: some decoders drop the blank before a text's first token. Empty: a new text.
  AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop_texts, std::span<const int64_t> before = {});

  std::string push(int64_t id);
  std::string finish();
  // A stop text was found; it and what follows are dropped.
  bool is_stopped() const { return is_stopped_; }

 private:
  std::string settle(bool is_end);

  StreamingDecoder decoder_;
  std::vector<std::string> stop_texts_;
  std::string held_;
  bool is_stopped_ = false;
};

// An answer split into its parts.
struct ParsedAnswer {
  std::string reasoning;     // between <think> and </think>
  std::string content;
  OrderedJson tool_calls = OrderedJson::array();  // {"name", "arguments": an object}
};

// Parses calls in Hermes' and Qwen's form (<tool_call>{…}</tool_call>) and, as the whole content, Llama 3.1's JSON;
// only with has_tools. An opening <think> may be part of the prompt.
ParsedAnswer parse_answer(std::string_view text, bool has_tools);

}  // namespace megalith
