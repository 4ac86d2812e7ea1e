// See jinja_expressions.h. One function per level of precedence, from the weakest to the strongest.
#include "tokenizer/jinja_expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace megalith {
namespace {

using Kind = JinjaToken::Kind;
using Part = JinjaExpression::Kind;
using Pointer = JinjaExpressionPtr;

constexpr int kDeepestParentheses = 40, kDeepestTree = 250;

std::string shown_token(const JinjaToken& token) {
  switch (token.kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kText:
      return "text";
    case Kind::kPrintBegin:
      return "'{{'";
    case Kind::kPrintEnd:
      return "'}}'";
    case Kind::kBlockBegin:
      return "'{%'";
    case Kind::kBlockEnd:
      return "'%}'";
    case Kind::kString:
      return "a text in quotes";
    default:
      return fmt::format("'{}'", token.text.substr(0, 40));
  }
}

}  // namespace

void JinjaExpressionParser::fail_with(std::string_view message) const {
  throw jinja_error(name_, here().line, message);
}

void JinjaExpressionParser::fail(std::string_view expected) const {
  fail_with(fmt::format("expected {}, found {}", expected, shown_token(here())));
}

bool JinjaExpressionParser::has_name_since(size_t place, std::string_view name) const {
  const auto begin = tokens_.begin();
  return std::any_of(begin + static_cast<std::ptrdiff_t>(place), begin + static_cast<std::ptrdiff_t>(at_),
                     [&](const JinjaToken& token) { return token.is(Kind::kName, name); });
}

bool JinjaExpressionParser::take_operator(std::string_view text) {
  if (!here().is(Kind::kOperator, text)) return false;
  take();
  return true;
}

bool JinjaExpressionParser::take_name(std::string_view text) {
  if (!here().is(Kind::kName, text)) return false;
  take();
  return true;
}

void JinjaExpressionParser::expect(Kind kind, std::string_view text, std::string_view what) {
  if (here().kind != kind || (!text.empty() && here().text != text)) fail(what);
  take();
}

Pointer JinjaExpressionParser::make(Part kind, int line, std::string name) const {
  auto made = std::make_unique<JinjaExpression>();
  made->kind = kind;
  made->line = line;
  made->name = std::move(name);
  return made;
}

void JinjaExpressionParser::add_part(JinjaExpression& whole, Pointer part) const {
  if (part) whole.depth = std::max(whole.depth, part->depth + 1);
  if (whole.depth > kDeepestTree) fail_with("the expression is too deep");
  whole.parts.push_back(std::move(part));
}

void JinjaExpressionParser::add_argument(JinjaExpression& whole, std::string name, Pointer part) const {
  whole.depth = std::max(whole.depth, part->depth + 1);
  if (whole.depth > kDeepestTree) fail_with("the expression is too deep");
  whole.arguments.emplace_back(std::move(name), std::move(part));
}

Pointer JinjaExpressionParser::expression() {
  if (++depth_ > kDeepestParentheses) fail_with("the expression nests too deeply");
  Pointer value = or_expression();
  while (here().is(Kind::kName, "if")) {
    Pointer choice = make(Part::kChoice, take().line);
    add_part(*choice, std::move(value));
    add_part(*choice, or_expression());
    add_part(*choice, take_name("else") ? expression() : nullptr);
    value = std::move(choice);
  }
  --depth_;
  return value;
}

Pointer JinjaExpressionParser::tuple_of(Pointer (JinjaExpressionParser::*item)()) {
  Pointer first = (this->*item)();
  if (!here().is(Kind::kOperator, ",")) return first;
  Pointer list = make(Part::kList, first->line);
  add_part(*list, std::move(first));
  while (take_operator(",")) {
    const bool ends =
        here().kind == Kind::kBlockEnd || here().kind == Kind::kPrintEnd || here().is(Kind::kOperator, ")");
    if (ends) break;
    add_part(*list, (this->*item)());
  }
  return list;
}

Pointer JinjaExpressionParser::tuple() { return tuple_of(&JinjaExpressionParser::expression); }
Pointer JinjaExpressionParser::tuple_without_choice() { return tuple_of(&JinjaExpressionParser::or_expression); }

Pointer JinjaExpressionParser::or_expression() {
  Pointer left = and_expression();
  while (here().is(Kind::kName, "or")) {
    Pointer whole = make(Part::kOr, take().line);
    add_part(*whole, std::move(left));
    add_part(*whole, and_expression());
    left = std::move(whole);
  }
  return left;
}

Pointer JinjaExpressionParser::and_expression() {
  Pointer left = not_expression();
  while (here().is(Kind::kName, "and")) {
    Pointer whole = make(Part::kAnd, take().line);
    add_part(*whole, std::move(left));
    add_part(*whole, not_expression());
    left = std::move(whole);
  }
  return left;
}

Pointer JinjaExpressionParser::not_expression() {
  if (!here().is(Kind::kName, "not")) return comparison();
  if (++depth_ > kDeepestParentheses) fail_with("the expression nests too deeply");
  Pointer whole = make(Part::kNot, take().line);
  add_part(*whole, not_expression());
  --depth_;
  return whole;
}

Pointer JinjaExpressionParser::comparison() {
  Pointer left = sum();
  Pointer whole;
  for (;;) {
    std::string operation;
    const JinjaToken& next = here();
    const bool is_not = next.is(Kind::kName, "not") && tokens_[at_ + 1].is(Kind::kName, "in");
    if (is_not) take();
    if (is_not || next.is(Kind::kName, "in")) {
      operation = is_not ? "not in" : "in";
    } else if (next.kind == Kind::kOperator && (next.text == "==" || next.text == "!=" || next.text == "<" ||
                                                next.text == "<=" || next.text == ">" || next.text == ">=")) {
      operation = next.text;
    } else {
      break;
    }
    const int line = take().line;
    if (!whole) {
      whole = make(Part::kBetween, line);
      add_part(*whole, std::move(left));
    }
    whole->operations.push_back(operation);
    add_part(*whole, sum());
  }
  return whole ? std::move(whole) : std::move(left);
}

Pointer JinjaExpressionParser::sum() {
  Pointer left = joined_texts();
  while (here().is(Kind::kOperator, "+") || here().is(Kind::kOperator, "-")) {
    Pointer whole = make(Part::kArithmetic, here().line, here().text);
    take();
    add_part(*whole, std::move(left));
    add_part(*whole, joined_texts());
    left = std::move(whole);
  }
  return left;
}

Pointer JinjaExpressionParser::joined_texts() {
  Pointer first = product();
  if (!here().is(Kind::kOperator, "~")) return first;
  Pointer whole = make(Part::kJoin, here().line);
  add_part(*whole, std::move(first));
  while (take_operator("~")) add_part(*whole, product());
  return whole;
}

Pointer JinjaExpressionParser::product() {
  Pointer left = power();
  for (;;) {
    const JinjaToken& next = here();
    const bool is_product =
        next.kind == Kind::kOperator && (next.text == "*" || next.text == "/" || next.text == "//" || next.text == "%");
    if (!is_product) return left;
    Pointer whole = make(Part::kArithmetic, next.line, next.text);
    take();
    add_part(*whole, std::move(left));
    add_part(*whole, power());
    left = std::move(whole);
  }
}

Pointer JinjaExpressionParser::power() {
  Pointer left = unary(true);
  while (here().is(Kind::kOperator, "**")) {
    Pointer whole = make(Part::kArithmetic, take().line, "**");
    add_part(*whole, std::move(left));
    add_part(*whole, unary(true));
    left = std::move(whole);
  }
  return left;
}

Pointer JinjaExpressionParser::unary(bool takes_filters) {
  if (++depth_ > kDeepestParentheses) fail_with("the expression nests too deeply");
  Pointer value;
  if (here().is(Kind::kOperator, "-")) {
    value = make(Part::kNegate, take().line);
    add_part(*value, unary(false));
  } else if (take_operator("+")) {
    value = unary(false);
  } else {
    value = primary();
  }
  --depth_;
  value = postfix(std::move(value));
  return takes_filters ? filters(std::move(value)) : std::move(value);
}

Pointer JinjaExpressionParser::primary() {
  const JinjaToken& token = here();
  if (token.kind == Kind::kOperator) return bracketed();
  Pointer made = make(Part::kConstant, token.line);
  if (token.kind == Kind::kName) {
    const std::string& name = token.text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      made->constant = name == "true" || name == "True";
    } else if (name == "none" || name == "None") {
      made->constant = nullptr;
    } else {
      made->kind = Part::kName;
      made->name = name;
    }
    take();
  } else if (token.kind == Kind::kString) {
    std::string text;
    while (here().kind == Kind::kString) text += take().text;
    made->constant = JinjaValue(text, nullptr);
  } else if (token.kind == Kind::kInt) {
    errno = 0;
    made->constant = static_cast<int64_t>(std::strtoll(token.text.c_str(), nullptr, 10));
    if (errno == ERANGE) fail_with("a whole number beyond 64 bits");
    take();
  } else if (token.kind == Kind::kFloat) {
    made->constant = std::strtod(token.text.c_str(), nullptr);
    take();
  } else {
    fail("a value");
  }
  return made;
}

// A list, a dict, or an expression in parentheses.
Pointer JinjaExpressionParser::bracketed() {
  const int line = here().line;
  if (take_operator("(")) {
    if (take_operator(")")) return make(Part::kList, line);
    Pointer value = tuple();
    expect(Kind::kOperator, ")", "')'");
    return value;
  }
  if (take_operator("[")) {
    Pointer list = make(Part::kList, line);
    while (!take_operator("]")) {
      if (!list->parts.empty()) expect(Kind::kOperator, ",", "',' or ']'");
      if (take_operator("]")) break;
      add_part(*list, expression());
    }
    return list;
  }
  if (take_operator("{")) {
    Pointer dict = make(Part::kDict, line);
    while (!take_operator("}")) {
      if (!dict->parts.empty()) expect(Kind::kOperator, ",", "',' or '}'");
      if (take_operator("}")) break;
      add_part(*dict, expression());
      expect(Kind::kOperator, ":", "':'");
      add_part(*dict, expression());
    }
    return dict;
  }
  fail("a value");
}

Pointer JinjaExpressionParser::postfix(Pointer value) {
  for (;;) {
    const int line = here().line;
    if (take_operator(".")) {
      Pointer whole;
      if (here().kind == Kind::kName) {
        whole = make(Part::kAttribute, line, here().text);
        add_part(*whole, std::move(value));
        take();
      } else if (here().kind == Kind::kInt) {
        whole = make(Part::kItem, line);
        add_part(*whole, std::move(value));
        add_part(*whole, primary());
      } else {
        fail("a name behind '.'");
      }
      value = std::move(whole);
    } else if (take_operator("[")) {
      value = subscript(std::move(value));
    } else if (here().is(Kind::kOperator, "(")) {
      Pointer call = make(Part::kCall, line);
      add_part(*call, std::move(value));
      arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

Pointer JinjaExpressionParser::subscript(Pointer value) {
  const int line = here().line;
  Pointer parts[3];
  size_t colons = 0;
  while (!here().is(Kind::kOperator, "]")) {
    if (take_operator(":")) {
      if (++colons > 2) fail("']'");
    } else if (parts[colons]) {
      fail("']'");
    } else {
      parts[colons] = expression();
    }
  }
  take();
  if (colons == 0 && !parts[0]) fail("an index");
  Pointer whole = make(colons == 0 ? Part::kItem : Part::kSlice, line);
  add_part(*whole, std::move(value));
  for (size_t i = 0; i < (colons == 0 ? 1u : 3u); ++i) add_part(*whole, std::move(parts[i]));
  return whole;
}

Pointer JinjaExpressionParser::filters(Pointer value) {
  for (;;) {
    const int line = here().line;
    if (take_operator("|")) {
      if (here().kind != Kind::kName) fail("the name of a filter");
      Pointer filter = make(Part::kFilter, line, take().text);
      add_part(*filter, std::move(value));
      if (here().is(Kind::kOperator, "(")) arguments(*filter);
      value = std::move(filter);
    } else if (take_name("is")) {
      value = test(std::move(value));
    } else if (here().is(Kind::kOperator, "(")) {
      Pointer call = make(Part::kCall, line);
      add_part(*call, std::move(value));
      arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

Pointer JinjaExpressionParser::test(Pointer value) {
  const bool is_not = take_name("not");
  const int line = here().line;
  const bool has_name = here().kind == Kind::kName || here().is(Kind::kOperator, "==");
  if (!has_name) fail("the name of a test");
  Pointer made = make(Part::kTest, line, take().text);
  add_part(*made, std::move(value));
  const JinjaToken& next = here();
  const bool is_value = next.kind == Kind::kString || next.kind == Kind::kInt || next.kind == Kind::kFloat ||
                        next.is(Kind::kOperator, "[") || next.is(Kind::kOperator, "{");
  const bool is_name = next.kind == Kind::kName && next.text != "else" && next.text != "or" && next.text != "and" &&
                       next.text != "if" && next.text != "not" && next.text != "in" && next.text != "is";
  if (next.is(Kind::kOperator, "(")) {
    arguments(*made);
  } else if (is_value || is_name) {
    add_argument(*made, "", postfix(primary()));
  }
  if (!is_not) return made;
  Pointer negated = make(Part::kNot, line);
  add_part(*negated, std::move(made));
  return negated;
}

void JinjaExpressionParser::arguments(JinjaExpression& call) {
  expect(Kind::kOperator, "(", "'('");
  while (!take_operator(")")) {
    if (!call.arguments.empty()) expect(Kind::kOperator, ",", "',' or ')'");
    if (take_operator(")")) break;
    if (here().is(Kind::kOperator, "*") || here().is(Kind::kOperator, "**")) {
      fail_with("arguments from a list or dict ('*') are not known here");
    }
    std::string name;
    if (here().kind == Kind::kName && tokens_[at_ + 1].is(Kind::kOperator, "=")) {
      name = take().text;
      take();
    } else if (!call.arguments.empty() && !call.arguments.back().first.empty()) {
      fail("an argument by name");
    }
    add_argument(call, std::move(name), expression());
  }
}

}  // namespace megalith
