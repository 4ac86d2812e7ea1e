#include "serve/chat_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

void drop_leading(std::string& text, std::string_view characters) {
  text.erase(0, std::min(text.find_first_not_of(characters), text.size()));
}

}  // namespace

ParsedAnswer ChatAnswer::push(std::string_view text) {
  held_ += text;
  return advance(false);
}

ParsedAnswer ChatAnswer::finish() { return advance(true); }

// The text before the marker, or as much as cannot belong to it; blanks before the marker are dropped.
std::string ChatAnswer::take_until(std::string_view marker, bool is_end) {
  size_t end = held_.find(marker);
  if (end == std::string::npos) end = held_.size() - (is_end ? 0 : unfinished(held_, marker));
  if (!is_end || end < held_.size()) end = end == 0 ? 0 : held_.find_last_not_of(kBlanks, end - 1) + 1;
  std::string text = held_.substr(0, end);
  held_.erase(0, end);
  return text;
}

ParsedAnswer ChatAnswer::advance(bool is_end) {
  ParsedAnswer answer;
  if (part_ == Part::kStart) {
    const std::string_view begin = trim(held_);
    if (begin.starts_with(kThinkBegin)) {
      held_.erase(0, held_.find(kThinkBegin) + kThinkBegin.size());
      part_ = Part::kReasoning;
      drops_leading_ = true;
    } else if (!kThinkBegin.starts_with(begin) || is_end) {
      part_ = Part::kContent;
    }
  }
  if (part_ == Part::kReasoning) {
    if (drops_leading_) drop_leading(held_, kBlanks);
    answer.reasoning = take_until(kThinkEnd, is_end);
    drops_leading_ = drops_leading_ && answer.reasoning.empty();
    if (trim(held_).starts_with(kThinkEnd)) {
      held_.erase(0, held_.find(kThinkEnd) + kThinkEnd.size());
      part_ = Part::kContent;
      drops_leading_ = true;
    }
  }
  if (part_ == Part::kContent) {
    if (drops_leading_) drop_leading(held_, "\n");
    drops_leading_ = drops_leading_ && held_.empty();
    if (!has_tools_) {
      answer.content = std::move(held_);
      held_.clear();
    } else if (!has_content_ && trim(held_).starts_with('{')) {
      part_ = Part::kCalls;  // Llama 3.1's form
    } else {
      answer.content = take_until(kCallBegin, is_end);
      if (trim(held_).starts_with(kCallBegin)) part_ = Part::kCalls;
    }
    has_content_ = has_content_ || !answer.content.empty();
  }
  if (part_ == Part::kCalls && is_end) {
    ParsedAnswer calls = parse_answer(held_, true);
    answer.content += calls.content;
    answer.tool_calls = std::move(calls.tool_calls);
  }
  return answer;
}

}  // namespace megalith
