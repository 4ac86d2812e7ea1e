// Walks the tree of a template; see jinja_template.h.
#include "tokenizer/jinja_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "core/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_lexer.h"

namespace megalith {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kDeepestCall = 600;  // statements, expressions and macros within each other

// The variables of a loop's turn or a macro's call, and those around it.
struct JinjaScope {
  JinjaScope* outer = nullptr;
  std::map<std::string, JinjaValue, std::less<>> values = {};
};

enum class Flow { kNext, kBreak, kContinue };

class JinjaRenderer {
 public:
  JinjaRenderer(const JinjaMembers& variables, int64_t most_steps) : most_steps_(most_steps) {
    for (auto& [name, function] : jinja_functions()) root_.values[name] = function;
    root_.values["namespace"] =
        JinjaFunction{"namespace", [this](const JinjaArguments& arguments) { return make_namespace(arguments); }};
    for (const auto& [name, value] : variables) root_.values[name] = value;
  }

  std::string run(const std::vector<Statement>& body) {
    std::string out;
    execute(body, root_, out);
    return out;
  }
  int line() const { return line_; }

 private:
  struct Depth {
    Depth(JinjaRenderer& renderer, int line) : renderer_(renderer) {
      renderer.line_ = line;
      if (++renderer.depth_ > kDeepestCall) throw JinjaFault{"macros and expressions nest too deeply"};
      renderer.count_steps(1);
    }
    ~Depth() { --renderer_.depth_; }
    JinjaRenderer& renderer_;
  };

  void count_steps(size_t count) {
    num_steps_ += static_cast<int64_t>(count);
    if (num_steps_ > most_steps_) throw JinjaFault{"the template takes too many steps"};
  }

  JinjaValue make_namespace(const JinjaArguments& arguments) {
    JinjaNamespace& space = spaces_.emplace_back();
    for (const JinjaValue& value : arguments.by_place) {
      if (value.members() == nullptr) throw JinjaFault{fmt::format("a namespace of {}", value.kind())};
      for (const auto& [name, member] : *value.members()) space[name] = member;
    }
    for (const auto& [name, value] : arguments.by_name) space[name] = value;
    return &space;
  }

  static void print(const std::string& text, std::string& out) {
    if (out.size() + text.size() > kMostJinjaBytes) throw JinjaFault{"the template writes too much"};
    out += text;
  }

  Flow execute(const std::vector<Statement>& body, JinjaScope& scope, std::string& out) {
    for (const Statement& statement : body) {
      if (const Flow flow = execute(statement, scope, out); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& statement, JinjaScope& scope, std::string& out) {
    const Depth depth(*this, statement.line);
    switch (statement.kind) {
      case Statement::Kind::kText:
        print(statement.text, out);
        break;
      case Statement::Kind::kPrint:
        print(evaluate(*statement.expression, scope).to_text(), out);
        break;
      case Statement::Kind::kIf:
        for (const Statement::Branch& branch : statement.branches) {
          if (!branch.condition || evaluate(*branch.condition, scope).is_true()) {
            return execute(branch.body, scope, out);
          }
        }
        break;
      case Statement::Kind::kFor:
        loop(statement, scope, out);
        break;
      case Statement::Kind::kSet:
        assign(statement.targets, evaluate(*statement.expression, scope), scope);
        break;
      case Statement::Kind::kSetBlock: {
        std::string text;
        const Flow flow = execute(statement.body, scope, text);
        assign(statement.targets, text, scope);
        return flow;
      }
      case Statement::Kind::kMacro:
        scope.values[statement.text] = JinjaFunction{
            statement.text,
            [this, &statement](const JinjaArguments& arguments) { return call_macro(statement, arguments); }};
        break;
      case Statement::Kind::kGeneration:
        return execute(statement.body, scope, out);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void assign(const std::vector<std::string>& targets, const JinjaValue& value, JinjaScope& scope) {
    if (targets.size() > 1) {
      const JinjaItems items = value.to_items();
      if (items.size() != targets.size()) {
        throw JinjaFault{fmt::format("{} values for {} names", items.size(), targets.size())};
      }
      for (size_t i = 0; i < items.size(); ++i) scope.values[targets[i]] = items[i];
      return;
    }
    const std::string& target = targets[0];
    const size_t dot = target.find('.');
    if (dot == std::string::npos) {
      scope.values[target] = value;
      return;
    }
    const JinjaValue owner = look_up(target.substr(0, dot), scope);
    if (owner.space() == nullptr) {
      throw JinjaFault{
          fmt::format("'set {}' needs a namespace, and {} is {}", target, target.substr(0, dot), owner.kind())};
    }
    (*owner.space())[target.substr(dot + 1)] = value;
  }

  static JinjaValue look_up(std::string_view name, const JinjaScope& scope) {
    for (const JinjaScope* s = &scope; s != nullptr; s = s->outer) {
      if (const auto found = s->values.find(name); found != s->values.end()) return found->second;
    }
    return JinjaValue::undefined(name);
  }

  // The variable `loop` in the i-th turn.
  static JinjaValue loop_value(const JinjaItems& items, size_t i, int64_t depth,
                               const std::shared_ptr<JinjaValue>& changed) {
    const auto index = static_cast<int64_t>(i), length = static_cast<int64_t>(items.size());
    return JinjaMembers{
        {"index", index + 1},
        {"index0", index},
        {"revindex", length - index},
        {"revindex0", length - index - 1},
        {"first", index == 0},
        {"last", index + 1 == length},
        {"length", length},
        {"depth", depth},
        {"depth0", depth - 1},
        {"previtem", i > 0 ? items[i - 1] : JinjaValue::undefined("there is no previous item")},
        {"nextitem", i + 1 < items.size() ? items[i + 1] : JinjaValue::undefined("there is no next item")},
        {"cycle", JinjaFunction{"cycle",
                                [i](const JinjaArguments& arguments) {
                                  if (arguments.by_place.empty()) throw JinjaFault{"cycle of nothing"};
                                  return arguments.by_place[i % arguments.by_place.size()];
                                }}},
        {"changed", JinjaFunction{"changed", [changed](const JinjaArguments& arguments) {
                                    JinjaValue now(arguments.by_place);
                                    const bool differs = changed->is_undefined() || !jinja_equal(*changed, now);
                                    *changed = std::move(now);
                                    return JinjaValue(differs);
                                  }}}};
  }

  void loop(const Statement& statement, JinjaScope& scope, std::string& out) {
    const JinjaValue over = evaluate(*statement.expression, scope);
    JinjaItems items = over.to_items();
    if (statement.condition) {
      JinjaItems kept;
      for (JinjaValue& item : items) {
        JinjaScope turn{&scope};
        assign(statement.targets, item, turn);
        if (evaluate(*statement.condition, turn).is_true()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      JinjaScope otherwise{&scope};
      execute(statement.otherwise, otherwise, out);
      return;
    }
    ++loop_depth_;
    const auto changed = std::make_shared<JinjaValue>();
    for (size_t i = 0; i < items.size(); ++i) {
      const Depth depth(*this, statement.line);
      count_steps(3);  // a turn makes the variable `loop`
      JinjaScope turn{&scope};
      turn.values["loop"] = loop_value(items, i, loop_depth_, changed);
      assign(statement.targets, items[i], turn);
      if (execute(statement.body, turn, out) == Flow::kBreak) break;
    }
    --loop_depth_;
  }

  JinjaValue call_macro(const Statement& macro, const JinjaArguments& arguments) {
    const Depth depth(*this, macro.line);
    JinjaScope scope{&root_};
    if (arguments.by_place.size() > macro.targets.size()) {
      throw JinjaFault{fmt::format("{} arguments for the macro {}", arguments.by_place.size(), macro.text)};
    }
    for (const auto& [name, value] : arguments.by_name) {
      if (std::find(macro.targets.begin(), macro.targets.end(), name) == macro.targets.end()) {
        throw JinjaFault{fmt::format("the macro {} has no parameter {}", macro.text, name)};
      }
    }
    const size_t first_default = macro.targets.size() - macro.defaults.size();
    for (size_t i = 0; i < macro.targets.size(); ++i) {
      const JinjaValue* given = arguments.find(i, macro.targets[i]);
      scope.values[macro.targets[i]] = given != nullptr     ? *given
                                       : i >= first_default ? evaluate(*macro.defaults[i - first_default], scope)
                                                            : JinjaValue::undefined(macro.targets[i]);
    }
    std::string out;
    execute(macro.body, scope, out);
    return out;
  }

  JinjaArguments arguments_of(const Expression& expression, JinjaScope& scope) {
    JinjaArguments arguments;
    for (const auto& [name, value] : expression.arguments) {
      if (name.empty()) {
        arguments.by_place.push_back(evaluate(*value, scope));
      } else {
        arguments.by_name.emplace_back(name, evaluate(*value, scope));
      }
    }
    return arguments;
  }

  JinjaValue call(const Expression& expression, JinjaScope& scope) {
    const JinjaValue callee = evaluate(*expression.parts[0], scope);
    if (callee.is_undefined()) callee.fail_undefined();
    if (callee.function() == nullptr) throw JinjaFault{fmt::format("{} is called as a function", callee.kind())};
    const JinjaArguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    return callee.function()->call(arguments);
  }

  JinjaValue attribute(const JinjaValue& value, const std::string& name) {
    if (value.is_undefined()) value.fail_undefined();
    const JinjaValue method = jinja_method(value, name);
    if (!method.is_undefined()) return method;
    const JinjaValue* member = value.member(name);
    return member != nullptr ? *member : JinjaValue::undefined(fmt::format("'{}' of {}", name, value.kind()));
  }

  JinjaValue item(const JinjaValue& value, const JinjaValue& index) {
    JinjaValue found = jinja_item(value, index);
    if (found.is_undefined() && index.text() != nullptr && value.member(*index.text()) == nullptr) {
      return attribute(value, *index.text());
    }
    return found;
  }

  static bool compares(std::string_view operation, const JinjaValue& a, const JinjaValue& b) {
    if (operation == "==") return jinja_equal(a, b);
    if (operation == "!=") return !jinja_equal(a, b);
    if (operation == "in") return jinja_contains(b, a);
    if (operation == "not in") return !jinja_contains(b, a);
    const int order = jinja_compare(a, b);
    return operation == "<" ? order < 0 : operation == "<=" ? order <= 0 : operation == ">" ? order > 0 : order >= 0;
  }

  JinjaValue comparison(const Expression& expression, JinjaScope& scope) {
    JinjaValue left = evaluate(*expression.parts[0], scope);
    for (size_t i = 0; i < expression.operations.size(); ++i) {
      JinjaValue right = evaluate(*expression.parts[i + 1], scope);
      line_ = expression.line;
      if (!compares(expression.operations[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  JinjaValue test(const Expression& expression, JinjaScope& scope) {
    const JinjaValue value = evaluate(*expression.parts[0], scope);
    const JinjaArguments arguments = arguments_of(expression, scope);
    line_ = expression.line;
    return apply_jinja_test(expression.name, value, arguments);
  }

  JinjaValue evaluate(const Expression& expression, JinjaScope& scope) {
    const Depth depth(*this, expression.line);
    JinjaValue value = compute(expression, scope);
    // Long texts and lists take longer to make.
    count_steps(value.num_items() + (value.text() == nullptr ? 0 : value.text()->size() / 4096));
    return value;
  }

  JinjaValue compute(const Expression& expression, JinjaScope& scope) {
    const auto part = [&](size_t i) {
      JinjaValue value = expression.parts[i] ? evaluate(*expression.parts[i], scope) : JinjaValue(nullptr);
      line_ = expression.line;
      return value;
    };
    switch (expression.kind) {
      case Expression::Kind::kConstant:
        return expression.constant;
      case Expression::Kind::kName:
        return look_up(expression.name, scope);
      case Expression::Kind::kList: {
        JinjaItems items;
        for (size_t i = 0; i < expression.parts.size(); ++i) items.push_back(part(i));
        return items;
      }
      case Expression::Kind::kDict:
        return dict(expression, scope);
      case Expression::Kind::kAttribute:
        return attribute(part(0), expression.name);
      case Expression::Kind::kItem: {
        const JinjaValue value = part(0);
        return item(value, part(1));
      }
      case Expression::Kind::kSlice: {
        const JinjaValue value = part(0), begin = part(1), end = part(2), step = part(3);
        return jinja_slice(value, begin, end, step);
      }
      case Expression::Kind::kCall:
        return call(expression, scope);
      case Expression::Kind::kFilter: {
        const JinjaValue value = part(0);
        const JinjaArguments arguments = arguments_of(expression, scope);
        line_ = expression.line;
        return apply_jinja_filter(expression.name, value, arguments);
      }
      case Expression::Kind::kTest:
        return test(expression, scope);
      case Expression::Kind::kNot:
        return !part(0).is_true();
      case Expression::Kind::kNegate:
        return jinja_arithmetic("-", int64_t{0}, part(0));
      case Expression::Kind::kArithmetic: {
        const JinjaValue left = part(0);
        return jinja_arithmetic(expression.name, left, part(1));
      }
      case Expression::Kind::kBetween:
        return comparison(expression, scope);
      case Expression::Kind::kJoin: {
        std::string text;
        for (size_t i = 0; i < expression.parts.size(); ++i) text += part(i).to_text();
        return text;
      }
      case Expression::Kind::kAnd: {
        JinjaValue left = part(0);
        return left.is_true() ? part(1) : left;
      }
      case Expression::Kind::kOr: {
        JinjaValue left = part(0);
        return left.is_true() ? left : part(1);
      }
      case Expression::Kind::kChoice:
        if (part(1).is_true()) return part(0);
        return expression.parts[2] ? part(2) : JinjaValue::undefined("a value without 'else'");
    }
    throw InternalError("an expression of no kind");
  }

  JinjaValue dict(const Expression& expression, JinjaScope& scope) {
    JinjaMembers members;
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      const JinjaValue key = evaluate(*expression.parts[i], scope);
      if (key.text() == nullptr) throw JinjaFault{fmt::format("{} as the key of a dict; keys are texts", key.kind())};
      members.emplace_back(*key.text(), evaluate(*expression.parts[i + 1], scope));
    }
    return members;
  }

  JinjaScope root_;
  std::deque<JinjaNamespace> spaces_;  // values point to them
  int line_ = 1, depth_ = 0;
  int64_t most_steps_, num_steps_ = 0, loop_depth_ = 0;
};

}  // namespace

JinjaTemplate::JinjaTemplate(std::string_view source, std::string name) : name_(std::move(name)) {
  try {
    body_ = parse_jinja(source, name_);
  } catch (const JinjaFault& fault) {  // a constant beyond the bounds
    throw jinja_error(name_, 1, fault.message);
  }
}

std::string JinjaTemplate::render(const JinjaMembers& variables, int64_t most_steps) const {
  JinjaRenderer renderer(variables, most_steps);
  try {
    return renderer.run(body_);
  } catch (const JinjaFault& fault) {
    throw jinja_error(name_, renderer.line(), fault.message);
  } catch (const JinjaRefusal& refusal) {
    throw UserError(
        fmt::format("{}:{}: the template says: {}", name_, renderer.line(), refusal.message),
        "the template refuses this conversation by itself: mend the conversation, or take another template");
  }
}

}  // namespace megalith
