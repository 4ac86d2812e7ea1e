#include "kinds/text/chat_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr size_t kContextIds = 8;  // enough for a decoder to know where a word begins

// The first special token after an answer of a rendered conversation.
std::vector<int64_t> end_of_answer(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  const OrderedJson question = {{"role", "user"}, {"content", "question"}};
  const auto with_answer = [&](const char* answer) {
    return chat.render(OrderedJson::array({question, {{"role", "assistant"}, {"content", answer}}}), nullptr, false);
  };
  const std::string a = with_answer("a"), b = with_answer("b");
  auto first = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  if (first == a.end()) return {};
  const std::string_view tail = std::string_view(a).substr(static_cast<size_t>(first - a.begin()) + 1);
  for (const int32_t id : tokenizer.encode(tail)) {
    if (tokenizer.is_special(id)) return {id};
  }
  return {};
}

// The JSON object that the text is, or null.
OrderedJson object_in(std::string_view text) {
  try {
    OrderedJson json = parse_ordered_json(text, "call");
    return json.is_object() ? json : OrderedJson();
  } catch (const UserError&) {
    return nullptr;
  }
}

// {"name": …, "arguments" or "parameters": {…}}, or null.
OrderedJson call_of(std::string_view text) {
  OrderedJson json = object_in(text);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return nullptr;
  for (const char* key : {"arguments", "parameters"}) {
    if (json.contains(key) && json[key].is_object()) return {{"name", json["name"]}, {"arguments", json[key]}};
  }
  return nullptr;
}

// Arguments of every call, with `change(arguments)` for those it returns something for.
template <typename Change>
OrderedJson with_arguments(OrderedJson messages, const Change& change) {
  for (OrderedJson& message : messages) {
    if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) continue;
    for (OrderedJson& call : message["tool_calls"]) {
      OrderedJson& function = call.is_object() && call.contains("function") ? call["function"] : call;
      if (!function.is_object() || !function.contains("arguments")) continue;
      if (OrderedJson changed = change(function["arguments"]); !changed.is_null()) {
        function["arguments"] = std::move(changed);
      }
    }
  }
  return messages;
}

}  // namespace

size_t unfinished(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(mark.size() - 1, text.size()); size > 0; --size) {
    if (text.ends_with(mark.substr(0, size))) return size;
  }
  return 0;
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_model)
    : tokenizer_(tokenizer), template_(load_chat_template(tokenizer_model)) {
  try {
    stop_ids_ = end_of_answer(template_, tokenizer);
  } catch (const UserError&) {
    // The template refuses so short a conversation: only the model's own end of text is left.
  }
}

std::vector<int64_t> ChatFormat::prompt_ids(const OrderedJson& messages, const OrderedJson& tools) const {
  const OrderedJson readable = with_readable_calls(template_, messages, tools);
  const std::vector<int32_t> ids = tokenizer_.encode(template_.render(readable, tools, true));
  return {ids.begin(), ids.end()};
}

bool ChatFormat::opens_thinking(std::span<const int64_t> prompt_ids) const {
  const auto last = prompt_ids.last(std::min(prompt_ids.size(), kContextIds));
  const std::vector<int32_t> ids(last.begin(), last.end());
  return trim(tokenizer_.decode(ids)).ends_with(kThinkBegin);
}

OrderedJson with_readable_calls(const ChatTemplate& chat, const OrderedJson& messages, const OrderedJson& tools,
                                const OrderedJson* variables) {
  bool has_calls = false;
  std::vector<std::string> quoted;
  with_arguments(messages, [&](const OrderedJson& arguments) {
    if (arguments.is_string()) quoted.push_back(dump_json(arguments));
    has_calls = true;
    return OrderedJson();
  });
  if (!has_calls) return messages;
  try {
    const std::string text = chat.render(messages, tools, false, variables);
    const auto is_in = [&](const std::string& one) { return text.find(one) != std::string::npos; };
    if (std::ranges::none_of(quoted, is_in)) return messages;
    return with_arguments(messages, [](const OrderedJson& arguments) {
      return arguments.is_string() ? object_in(json_as<std::string>(Json(arguments), "arguments")) : OrderedJson();
    });
  } catch (const UserError&) {
  }
  OrderedJson worded = messages;
  for (OrderedJson& message : worded) {
    if (message.contains("tool_calls") && (!message.contains("content") || message["content"].is_null())) {
      message["content"] = "";
    }
  }
  const auto with_texts = [](const OrderedJson& list) {
    return with_arguments(list, [](const OrderedJson& arguments) {
      return arguments.is_object() ? OrderedJson(dump_json(arguments)) : OrderedJson();
    });
  };
  for (const OrderedJson& other : {worded, with_texts(messages), with_texts(worded)}) {
    try {
      chat.render(other, tools, false, variables);
      return other;
    } catch (const UserError&) {
    }
  }
  return messages;
}

OrderedJson with_readable_thoughts(const ChatTemplate& chat, const OrderedJson& messages) {
  constexpr std::array kNames = {"reasoning_content", "thinking", "reasoning"};
  const auto read = std::ranges::find_if(kNames, [&](const char* name) { return chat.reads_member(name); });
  OrderedJson made = messages;
  for (OrderedJson& message : made) {
    for (const char* name : kNames) {
      if (read == kNames.end() || !message.contains(name) || chat.reads_member(name)) continue;
      if (message.contains(*read)) continue;  // the template's own; the other is named as unread
      message[*read] = OrderedJson(message[name]);
      message.erase(name);
    }
  }
  return made;
}

void check_messages(const OrderedJson& messages, const std::string& where) {
  const auto fail = [&](const std::string& problem) {
    throw UserError(fmt::format("{}: {}", where, problem),
                    R"(give a list of messages such as [{"role": "user", "content": "Hello"}])");
  };
  if (!messages.is_array() || messages.empty()) fail("messages are not a list with at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if (!message.is_object()) fail(fmt::format("message {} is no object", i + 1));
    if (!message.contains("role") || !message["role"].is_string()) fail(fmt::format("message {} has no role", i + 1));
    const bool has_content = message.contains("content") && !message["content"].is_null();
    if (!has_content && !message.contains("tool_calls")) fail(fmt::format("message {} has no content", i + 1));
  }
}

std::optional<UserError> check_stop_texts(const std::vector<std::string>& stop_texts) {
  if (std::ranges::find(stop_texts, "") == stop_texts.end()) return std::nullopt;
  return UserError("stop has an empty text", "give the text that ends an answer");
}

AnswerText::AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop_texts,
                       std::span<const int64_t> before)
    : decoder_(tokenizer, /*skip_special=*/true), stop_texts_(std::move(stop_texts)) {
  for (const int64_t id : before.last(std::min(before.size(), kContextIds))) decoder_.push(narrow<int32_t>(id));
}

std::string AnswerText::push(int64_t id) {
  if (is_stopped_) return "";
  held_ += decoder_.push(narrow<int32_t>(id));
  return settle(false);
}

std::string AnswerText::finish() {
  if (is_stopped_) return "";
  held_ += decoder_.finish();
  return settle(true);
}

std::string AnswerText::settle(bool is_end) {
  size_t end = held_.size();
  for (const std::string& stop : stop_texts_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    is_stopped_ = true;
    end = std::min(end, found);
  }
  if (!is_stopped_ && !is_end) {
    for (const std::string& stop : stop_texts_) end = std::min(end, held_.size() - unfinished(held_, stop));
  }
  std::string settled = held_.substr(0, end);
  held_.erase(0, end);
  return settled;
}

ParsedAnswer parse_answer(std::string_view text, bool has_tools) {
  ParsedAnswer answer;
  if (const size_t end = text.find(kThinkEnd); end != std::string_view::npos) {
    std::string_view reasoning = text.substr(0, end);
    if (const size_t begin = reasoning.find(kThinkBegin); begin != std::string_view::npos) {
      reasoning.remove_prefix(begin + kThinkBegin.size());
    }
    answer.reasoning = trim(reasoning);
    text = text.substr(end + kThinkEnd.size());
    while (text.starts_with('\n')) text.remove_prefix(1);
  }
  answer.content = text;
  if (!has_tools) return answer;
  if (OrderedJson call = call_of(text); !call.is_null()) {
    answer.tool_calls.push_back(std::move(call));
    answer.content.clear();
    return answer;
  }
  std::string rest;
  while (true) {
    const size_t begin = text.find(kCallBegin);
    const size_t end = begin == std::string_view::npos ? begin : text.find(kCallEnd, begin);
    if (end == std::string_view::npos) break;
    OrderedJson call = call_of(text.substr(begin + kCallBegin.size(), end - begin - kCallBegin.size()));
    if (call.is_null()) break;  // not a call: remains text
    answer.tool_calls.push_back(std::move(call));
    rest += text.substr(0, begin);
    text.remove_prefix(end + kCallEnd.size());
  }
  if (!answer.tool_calls.empty()) answer.content = trim(rest + std::string(text));
  return answer;
}

}  // namespace megalith
