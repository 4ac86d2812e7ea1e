// The statements of a template; see jinja_syntax.h and, for expressions, jinja_expressions.h.
#include <fmt/format.h>

#include "tokenizer/jinja_expressions.h"

namespace megalith {
namespace {

using Kind = JinjaToken::Kind;
using Statement = JinjaStatement;
using Words = std::initializer_list<std::string_view>;

constexpr int kDeepestStatement = 60;

class JinjaStatementParser : JinjaExpressionParser {
 public:
  using JinjaExpressionParser::JinjaExpressionParser;

  std::vector<Statement> run() {
    std::vector<Statement> body = statements({});
    if (!is_at_end()) fail("a template that ends here");
    return body;
  }

 private:
  // Statements up to a tag that begins with one of these words, which becomes the next token.
  std::vector<Statement> statements(Words ends) {
    if (++depth_ > kDeepestStatement) fail_with("statements nest too deeply");
    std::vector<Statement> body;
    while (!is_at_end()) {
      if (here().kind == Kind::kText) {
        Statement& text = body.emplace_back();
        text.line = here().line;
        text.text = take().text;
      } else if (here().kind == Kind::kPrintBegin) {
        Statement& print = body.emplace_back();
        print.kind = Statement::Kind::kPrint;
        print.line = take().line;
        print.expression = tuple();
        expect(Kind::kPrintEnd, "", "'}}'");
      } else {
        take();  // the beginning of a block
        for (const std::string_view end : ends) {
          if (here().is(Kind::kName, end)) {
            --depth_;
            return body;
          }
        }
        body.push_back(statement());
      }
    }
    if (ends.size() > 0) fail(fmt::format("'{{% {} %}}'", *(ends.end() - 1)));
    --depth_;
    return body;
  }

  void end_block() { expect(Kind::kBlockEnd, "", "'%}'"); }
  void end_statement(std::string_view word) {
    expect(Kind::kName, word, fmt::format("'{}'", word));
    end_block();
  }

  Statement statement() {
    Statement made;
    made.line = here().line;
    if (here().kind != Kind::kName) fail("the name of a statement");
    const std::string word = take().text;
    if (word == "if") {
      if_statement(made);
    } else if (word == "for") {
      for_statement(made);
    } else if (word == "set") {
      set_statement(made);
    } else if (word == "macro") {
      macro_statement(made);
    } else if (word == "generation") {
      made.kind = Statement::Kind::kGeneration;
      end_block();
      made.body = statements({"endgeneration"});
      end_statement("endgeneration");
    } else if (word == "break" || word == "continue") {
      if (num_loops_ == 0) fail_with(fmt::format("'{}' stands outside of a loop", word));
      made.kind = word == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      end_block();
    } else {
      fail_with(fmt::format("the statement '{}' is not known here", word));
    }
    return made;
  }

  void if_statement(Statement& made) {
    made.kind = Statement::Kind::kIf;
    for (;;) {
      Statement::Branch& branch = made.branches.emplace_back();
      branch.condition = tuple();
      end_block();
      branch.body = statements({"elif", "else", "endif"});
      if (take_name("elif")) continue;
      if (take_name("else")) {
        end_block();
        made.branches.push_back({nullptr, statements({"endif"})});
      }
      end_statement("endif");
      return;
    }
  }

  void for_statement(Statement& made) {
    made.kind = Statement::Kind::kFor;
    made.targets = names();
    expect(Kind::kName, "in", "'in'");
    made.expression = tuple_without_choice();
    if (take_name("if")) made.condition = expression();
    if (here().is(Kind::kName, "recursive")) fail_with("a recursive loop is not known here");
    end_block();
    ++num_loops_;
    const size_t begin = place();
    made.body = statements({"else", "endfor"});
    made.names_loop = has_name_since(begin, "loop");
    --num_loops_;
    if (take_name("else")) {
      end_block();
      made.otherwise = statements({"endfor"});
    }
    end_statement("endfor");
  }

  void set_statement(Statement& made) {
    made.kind = Statement::Kind::kSet;
    made.targets = names();
    if (made.targets.size() == 1 && take_operator(".")) {
      if (here().kind != Kind::kName) fail("the name of a member");
      made.targets[0] += "." + take().text;
    }
    if (take_operator("=")) {
      made.expression = tuple();
      end_block();
      return;
    }
    if (here().is(Kind::kOperator, "|")) fail_with("a filter of a block that is set is not known here");
    made.kind = Statement::Kind::kSetBlock;
    end_block();
    made.body = statements({"endset"});
    end_statement("endset");
  }

  void macro_statement(Statement& made) {
    made.kind = Statement::Kind::kMacro;
    if (num_loops_ > 0 || num_macros_ > 0) fail_with("a macro within a loop or a macro is not known here");
    if (here().kind != Kind::kName) fail("a macro's name");
    made.text = take().text;
    expect(Kind::kOperator, "(", "'('");
    while (!take_operator(")")) {
      if (!made.targets.empty()) expect(Kind::kOperator, ",", "',' or ')'");
      if (take_operator(")")) break;
      if (here().kind != Kind::kName) fail("the name of a parameter");
      made.targets.push_back(take().text);
      if (take_operator("=")) {
        made.defaults.push_back(expression());
      } else if (!made.defaults.empty()) {
        fail("'=': parameters behind one with a default have defaults");
      }
    }
    end_block();
    ++num_macros_;
    made.body = statements({"endmacro"});
    --num_macros_;
    end_statement("endmacro");
  }

  // One or more names, optionally in parentheses.
  std::vector<std::string> names() {
    std::vector<std::string> found;
    const bool has_parentheses = take_operator("(");
    do {
      if (!found.empty() && (here().is(Kind::kName, "in") || here().is(Kind::kOperator, ")"))) break;
      if (here().kind != Kind::kName) fail("a name to be set");
      found.push_back(take().text);
    } while (take_operator(","));
    if (has_parentheses) expect(Kind::kOperator, ")", "')'");
    return found;
  }

  int depth_ = 0, num_loops_ = 0, num_macros_ = 0;
};

}  // namespace

std::vector<JinjaStatement> parse_jinja(std::string_view source, std::string_view name) {
  return JinjaStatementParser(lex_jinja(source, name), name).run();
}

}  // namespace megalith
