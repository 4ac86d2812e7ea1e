// Parses the expressions of a Jinja template (jinja2/parser.py), for the statement parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_lexer.h"
#include "tokenizer/jinja_syntax.h"

namespace megalith {

class JinjaExpressionParser {
 public:
  // The name must outlive the parser.
  JinjaExpressionParser(std::vector<JinjaToken> tokens, std::string_view name)
      : tokens_(std::move(tokens)), name_(name) {}

 protected:
  JinjaExpressionPtr expression();
  // Several expressions separated by commas are a list.
  JinjaExpressionPtr tuple();
  JinjaExpressionPtr tuple_without_choice();  // a following 'if' is not part of it

  const JinjaToken& here() const { return tokens_[at_]; }
  bool is_at_end() const { return here().kind == JinjaToken::Kind::kEnd; }
  size_t place() const { return at_; }
  // True if the name occurs between `place` and the current token.
  bool has_name_since(size_t place, std::string_view name) const;
  const JinjaToken& take() { return tokens_[is_at_end() ? at_ : at_++]; }
  bool take_operator(std::string_view text);
  bool take_name(std::string_view text);
  void expect(JinjaToken::Kind kind, std::string_view text, std::string_view what);
  [[noreturn]] void fail(std::string_view expected) const;  // the message says what is there instead
  [[noreturn]] void fail_with(std::string_view message) const;

 private:
  JinjaExpressionPtr make(JinjaExpression::Kind kind, int line, std::string name = "") const;
  void add_part(JinjaExpression& whole, JinjaExpressionPtr part) const;
  void add_argument(JinjaExpression& whole, std::string name, JinjaExpressionPtr part) const;
  JinjaExpressionPtr tuple_of(JinjaExpressionPtr (JinjaExpressionParser::*item)());
  JinjaExpressionPtr or_expression();
  JinjaExpressionPtr and_expression();
  JinjaExpressionPtr not_expression();
  JinjaExpressionPtr comparison();
  JinjaExpressionPtr sum();
  JinjaExpressionPtr joined_texts();
  JinjaExpressionPtr product();
  JinjaExpressionPtr power();
  JinjaExpressionPtr unary(bool takes_filters);
  JinjaExpressionPtr primary();
  JinjaExpressionPtr bracketed();
  JinjaExpressionPtr postfix(JinjaExpressionPtr value);
  JinjaExpressionPtr subscript(JinjaExpressionPtr value);
  JinjaExpressionPtr filters(JinjaExpressionPtr value);
  JinjaExpressionPtr test(JinjaExpressionPtr value);
  void arguments(JinjaExpression& call);

  std::vector<JinjaToken> tokens_;
  std::string_view name_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace megalith
