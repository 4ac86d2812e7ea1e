// Splits a chat answer, as it is generated, into reasoning, content and tool calls. Withholds text that could still
// become another part.
#pragma once

#include <string>
#include <string_view>

#include "kinds/text/chat_format.h"

namespace megalith {

class ChatAnswer {
 public:
  // is_thinking  the prompt opened the reasoning
  ChatAnswer(bool is_thinking, bool has_tools)
      : part_(is_thinking ? Part::kReasoning : Part::kStart), has_tools_(has_tools), drops_leading_(is_thinking) {}

  // The text that became certain; tool calls only at the end.
  ParsedAnswer push(std::string_view text);
  ParsedAnswer finish();

 private:
  enum class Part { kStart, kReasoning, kContent, kCalls };
  std::string take_until(std::string_view marker, bool is_end);
  ParsedAnswer advance(bool is_end);

  Part part_;
  bool has_tools_;
  bool drops_leading_;  // blanks before a part begins
  bool has_content_ = false;
  std::string held_;
};

}  // namespace megalith
