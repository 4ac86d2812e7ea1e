// Splits a Jinja template into text stretches and the words of the tags. Strips blanks around tags as transformers
// does: trim_blocks and lstrip_blocks are on, and '-' and '+' at a tag's borders act.
// Source: jinja2/lexer.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace megalith {

struct JinjaToken {
  enum class Kind {
    kText,
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;

  bool is(Kind wanted, std::string_view what) const { return kind == wanted && text == what; }
};

// Bounds a message that may hold a long text made by the template.
std::string shortened_message(std::string_view message);
// "{name}:{line}: {message}"
UserError jinja_error(std::string_view name, int line, std::string_view message);

// Ends in kEnd. UserError for an unterminated tag and for characters that belong to no word.
std::vector<JinjaToken> lex_jinja(std::string_view source, std::string_view name);

}  // namespace megalith
