#include "tokenizer/jinja_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>

#include "core/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_lexer.h"

namespace megalith {
namespace {

using Expression = JinjaExpression;
using Statement = JinjaStatement;

constexpr int kDeepestCall = 600;           // nested statements, expressions and macros
constexpr int64_t kStep = 50, kScope = 10;  // units of work: a statement or expression, a look-up in a scope
constexpr size_t kLoopSteps = 16;           // the cost of the variable `loop`

// The variables of a loop iteration or macro call, and its enclosing scope.
struct JinjaScope {
  JinjaScope(JinjaBudget& budget, JinjaScope* around) : outer(around), held(&budget) {}

  void set(const std::string& name, const JinjaValue& value) {
    const auto [place, is_new] = values.try_emplace(name);
    if (is_new) held.add(kJinjaMemberBytes + name.size());
    held.budget()->work(std::bit_width(values.size()), kScope);
    place->second = value;
  }

  JinjaScope* outer = nullptr;
  std::map<std::string, JinjaValue, std::less<>> values;
  JinjaHeld held;
};

enum class Flow { kNext, kBreak, kContinue };

class JinjaRenderer {
 public:
  JinjaRenderer(const JinjaMembers& variables, const JinjaLimits& limits) : budget_(limits) {
    for (auto& [name, function] : jinja_functions(budget_)) root_.values[name] = function;
    root_.values["namespace"] = JinjaValue(
        JinjaFunction{"namespace", [this](const JinjaArguments& arguments) { return make_namespace(arguments); }},
        &budget_);
    for (const auto& [name, value] : variables) root_.values[name] = value;
  }

  std::string run(const std::vector<Statement>& body) {
    JinjaWriter out(budget_);
    execute(body, root_, out);
    return out.text();
  }
  const JinjaUse& use() const { return budget_.use(); }
  int line() const { return line_; }

 private:
  struct Depth {
    Depth(JinjaRenderer& renderer, int line) : renderer_(renderer) {
      renderer.line_ = line;
      if (++renderer.depth_ > kDeepestCall) throw JinjaFault{"macros and expressions nest too deeply"};
      renderer.budget_.work(1, kStep);
    }
    ~Depth() { --renderer_.depth_; }
    JinjaRenderer& renderer_;
  };

  JinjaValue make_namespace(const JinjaArguments& arguments) {
    JinjaNamespace& space = spaces_.emplace_back();
    const auto add = [&](const JinjaMembers& members) {
      for (const auto& [name, member] : members) set_member(space, name, member);
    };
    held_by_spaces_.add(kJinjaMemberBytes);
    for (const JinjaValue& value : arguments.by_place) {
      if (value.members() == nullptr) throw JinjaFault{fmt::format("a namespace of {}", value.kind())};
      add(*value.members());
    }
    add(arguments.by_name);
    return &space;
  }

  void set_member(JinjaNamespace& space, const std::string& name, const JinjaValue& value) {
    const auto [place, is_new] = space.try_emplace(name);
    if (is_new) held_by_spaces_.add(kJinjaMemberBytes + name.size());
    place->second = value;
  }

  Flow execute(const std::vector<Statement>& body, JinjaScope& scope, JinjaWriter& out) {
    for (const Statement& statement : body) {
      if (const Flow flow = execute(statement, scope, out); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& statement, JinjaScope& scope, JinjaWriter& out) {
    const Depth depth(*this, statement.line);
    switch (statement.kind) {
      case Statement::Kind::kText:
        out.add(statement.text);
        break;
      case Statement::Kind::kPrint:
        out.add(*evaluate(*statement.expression, scope).to_text(budget_).text());
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
        JinjaWriter text(budget_);
        const Flow flow = execute(statement.body, scope, text);
        assign(statement.targets, text.take(), scope);
        return flow;
      }
      case Statement::Kind::kMacro:
        scope.set(statement.text, JinjaValue(JinjaFunction{statement.text,
                                                           [this, &statement](const JinjaArguments& arguments) {
                                                             return call_macro(statement, arguments);
                                                           }},
                                             &budget_));
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
      const JinjaValue items = value.to_items(budget_);
      const size_t count = items.items()->size();
      if (count != targets.size()) throw JinjaFault{fmt::format("{} values for {} names", count, targets.size())};
      budget_.work(count, kStep);
      for (size_t i = 0; i < count; ++i) scope.set(targets[i], (*items.items())[i]);
      return;
    }
    const std::string& target = targets[0];
    const size_t dot = target.find('.');
    if (dot == std::string::npos) {
      scope.set(target, value);
      return;
    }
    const JinjaValue owner = look_up(target.substr(0, dot), scope);
    if (owner.space() == nullptr) {
      throw JinjaFault{
          fmt::format("'set {}' needs a namespace, and {} is {}", target, target.substr(0, dot), owner.kind())};
    }
    set_member(*owner.space(), target.substr(dot + 1), value);
  }

  JinjaValue look_up(std::string_view name, const JinjaScope& scope) {
    for (const JinjaScope* s = &scope; s != nullptr; s = s->outer) {
      budget_.work(1, kScope);
      if (const auto found = s->values.find(name); found != s->values.end()) return found->second;
    }
    return JinjaValue::undefined(name);
  }

  // The variable `loop` in the i-th iteration.
  JinjaValue loop_value(const JinjaItems& items, size_t i, int64_t depth, const std::shared_ptr<JinjaValue>& changed) {
    const auto index = static_cast<int64_t>(i), length = static_cast<int64_t>(items.size());
    const auto cycle = [i](const JinjaArguments& arguments) {
      if (arguments.by_place.empty()) throw JinjaFault{"cycle of nothing"};
      return arguments.by_place[i % arguments.by_place.size()];
    };
    const auto changes = [changed](const JinjaArguments& arguments) {
      JinjaListMaker now(&arguments.budget);
      now.add_items(arguments.by_place);
      JinjaValue list = now.take();
      const bool differs = changed->is_undefined() || !jinja_equal(*changed, list, arguments.budget);
      *changed = std::move(list);
      return JinjaValue(differs);
    };
    return {
        JinjaMembers{{"index", index + 1},
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
                     {"cycle", JinjaValue(JinjaFunction{"cycle", cycle}, &budget_)},
                     {"changed", JinjaValue(JinjaFunction{"changed", changes}, &budget_)}},
        &budget_};
  }

  void loop(const Statement& statement, JinjaScope& scope, JinjaWriter& out) {
    JinjaValue over = evaluate(*statement.expression, scope).to_items(budget_);
    if (statement.condition) {
      JinjaListMaker kept(&budget_);
      for (const JinjaValue& item : *over.items()) {
        JinjaScope turn(budget_, &scope);
        assign(statement.targets, item, turn);
        if (evaluate(*statement.condition, turn).is_true()) kept.add(item);
      }
      over = kept.take();
    }
    const JinjaItems& items = *over.items();
    if (items.empty()) {
      JinjaScope otherwise(budget_, &scope);
      execute(statement.otherwise, otherwise, out);
      return;
    }
    ++loop_depth_;
    const auto changed = std::make_shared<JinjaValue>();
    for (size_t i = 0; i < items.size(); ++i) {
      const Depth depth(*this, statement.line);
      JinjaScope turn(budget_, &scope);
      if (statement.names_loop) {
        budget_.work(kLoopSteps, kStep);
        turn.set("loop", loop_value(items, i, loop_depth_, changed));
      }
      assign(statement.targets, items[i], turn);
      if (execute(statement.body, turn, out) == Flow::kBreak) break;
    }
    --loop_depth_;
  }

  JinjaValue call_macro(const Statement& macro, const JinjaArguments& arguments) {
    const Depth depth(*this, macro.line);
    JinjaScope scope(budget_, &root_);
    budget_.work(macro.targets.size() * (1 + arguments.by_name.size()), kScope);
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
      scope.set(macro.targets[i], given != nullptr     ? *given
                                  : i >= first_default ? evaluate(*macro.defaults[i - first_default], scope)
                                                       : JinjaValue::undefined(macro.targets[i]));
    }
    JinjaWriter out(budget_);
    execute(macro.body, scope, out);
    return out.take();
  }

  JinjaArguments arguments_of(const Expression& expression, JinjaScope& scope) {
    JinjaArguments arguments(budget_);
    arguments.held.add(expression.arguments.size() * kJinjaMemberBytes);
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
    budget_.work(1, kJinjaCall);
    return callee.function()->call(arguments);
  }

  JinjaValue attribute(const JinjaValue& value, const std::string& name) {
    if (value.is_undefined()) value.fail_undefined();
    const JinjaValue method = jinja_method(value, name, budget_);
    if (!method.is_undefined()) return method;
    const JinjaValue* member = value.member(name, budget_);
    return member != nullptr ? *member : JinjaValue::undefined(fmt::format("'{:.60}' of {}", name, value.kind()));
  }

  JinjaValue item(const JinjaValue& value, const JinjaValue& index) {
    JinjaValue found = jinja_item(value, index, budget_);
    if (found.is_undefined() && index.text() != nullptr && value.member(*index.text(), budget_) == nullptr) {
      return attribute(value, *index.text());
    }
    return found;
  }

  bool compares(std::string_view operation, const JinjaValue& a, const JinjaValue& b) {
    if (operation == "==") return jinja_equal(a, b, budget_);
    if (operation == "!=") return !jinja_equal(a, b, budget_);
    if (operation == "in") return jinja_contains(b, a, budget_);
    if (operation == "not in") return !jinja_contains(b, a, budget_);
    const int order = jinja_compare(a, b, budget_);
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
    return compute(expression, scope);
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
        JinjaListMaker items(&budget_);
        for (size_t i = 0; i < expression.parts.size(); ++i) items.add(part(i));
        return items.take();
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
        return jinja_slice(value, begin, end, step, budget_);
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
        return jinja_arithmetic("-", int64_t{0}, part(0), budget_);
      case Expression::Kind::kArithmetic: {
        const JinjaValue left = part(0);
        return jinja_arithmetic(expression.name, left, part(1), budget_);
      }
      case Expression::Kind::kBetween:
        return comparison(expression, scope);
      case Expression::Kind::kJoin: {
        JinjaWriter text(budget_);
        for (size_t i = 0; i < expression.parts.size(); ++i) text.add(*part(i).to_text(budget_).text());
        return text.take();
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
    JinjaHeld held(&budget_);
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      const JinjaValue key = evaluate(*expression.parts[i], scope);
      if (key.text() == nullptr) throw JinjaFault{fmt::format("{} as the key of a dict; keys are texts", key.kind())};
      held.add(kJinjaMemberBytes + key.text()->size());
      members.emplace_back(*key.text(), evaluate(*expression.parts[i + 1], scope));
    }
    return {std::move(members), &budget_};
  }

  JinjaBudget budget_;  // outlives all values
  JinjaScope root_{budget_, nullptr};
  std::deque<JinjaNamespace> spaces_;  // a deque: values point to its elements
  JinjaHeld held_by_spaces_{&budget_};
  int line_ = 1, depth_ = 0;
  int64_t loop_depth_ = 0;
};

}  // namespace

JinjaTemplate::JinjaTemplate(std::string_view source, std::string name) : name_(std::move(name)) {
  try {
    body_ = parse_jinja(source, name_);
  } catch (const JinjaFault& fault) {  // a constant exceeds the bounds
    throw jinja_error(name_, 1, fault.message);
  }
}

std::string JinjaTemplate::render(const JinjaMembers& variables, const JinjaLimits& limits, JinjaUse* use) const {
  JinjaRenderer renderer(variables, limits);
  const auto report = [&] {
    if (use != nullptr) *use = renderer.use();
  };
  try {
    std::string text = renderer.run(body_);
    report();
    return text;
  } catch (const JinjaFault& fault) {
    report();
    throw jinja_error(name_, renderer.line(), fault.message);
  } catch (const JinjaRefusal& refusal) {
    report();
    throw UserError(
        fmt::format("{}:{}: the template says: {}", name_, renderer.line(), shortened_message(refusal.message)),
        "the template refuses this conversation by itself: mend the conversation, or take another template");
  }
}

}  // namespace megalith
