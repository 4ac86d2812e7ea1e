// A Jinja template as a tree, and its parser.
//
// The subset used by chat templates: for with if, else, break and continue; if, elif, else; set, also of a block and of
// a namespace's member; macro; generation; all expressions but those of the sandbox. Other statements are refused with
// their line. Source: jinja2/parser.py.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja_value.h"

namespace megalith {

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<JinjaExpression>;

struct JinjaExpression {
  enum class Kind {
    kConstant,
    kName,
    kList,        // parts
    kDict,        // parts: key, value, key, …
    kAttribute,   // part 0 . name
    kItem,        // part 0 [ part 1 ]
    kSlice,       // part 0 [ part 1 : part 2 : part 3 ]; null if left out
    kCall,        // part 0 ( arguments )
    kFilter,      // part 0 | name ( arguments )
    kTest,        // part 0 is name ( arguments )
    kNot,         // part 0
    kNegate,      // part 0
    kArithmetic,  // part 0 name part 1
    kBetween,     // a chain of comparisons: parts, each but the last followed by its operation in `operations`
    kJoin,        // parts ~
    kAnd,         // part 0, part 1
    kOr,
    kChoice,  // part 0 if part 1 else part 2; null: undefined
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  std::string name;
  JinjaValue constant;
  std::vector<JinjaExpressionPtr> parts;
  std::vector<std::string> operations;
  std::vector<std::pair<std::string, JinjaExpressionPtr>> arguments;  // positional ones have no name
  int depth = 1;                                                      // depth of the tree below it
};

struct JinjaStatement {
  enum class Kind { kText, kPrint, kIf, kFor, kSet, kSetBlock, kMacro, kGeneration, kBreak, kContinue };
  struct Branch {
    JinjaExpressionPtr condition;  // null: else
    std::vector<JinjaStatement> body;
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;                  // of kText; a macro's name
  std::vector<std::string> targets;  // names, or "space.member"; a macro's parameters
  JinjaExpressionPtr expression;     // printed, iterated over or assigned
  JinjaExpressionPtr condition;      // of kFor
  bool names_loop = false;           // the body of kFor contains the word `loop`
  std::vector<Branch> branches;      // of kIf
  std::vector<JinjaStatement> body, otherwise;
  std::vector<JinjaExpressionPtr> defaults;  // of a macro's last parameters
};

// UserError, with name and line, for unsupported syntax.
std::vector<JinjaStatement> parse_jinja(std::string_view source, std::string_view name);

}  // namespace megalith
