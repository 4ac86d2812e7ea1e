#include "train/frozen_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string_view>

#include "checkpoint/exchange.h"
#include "optim/update_rules.h"

namespace megalith {
namespace {

std::vector<std::regex> compiled(const std::vector<std::string>& expressions) {
  std::vector<std::regex> all;
  for (const std::string& expression : expressions) all.emplace_back(expression);
  return all;
}

bool is_named(const std::vector<std::regex>& expressions, const std::string& weight) {
  return std::ranges::any_of(expressions, [&](const std::regex& one) { return std::regex_match(weight, one); });
}

void check_thaw(const Config& config, int64_t thaw_at, std::vector<UserError>& errors) {
  const auto rules = make_update_rules(config.optimizer, Kernels::kReference);
  const auto other = std::ranges::find_if(
      rules, [](const auto& rule) { return rule->granularity() != UpdateRule::Granularity::kElements; });
  if (other != rules.end()) {
    errors.emplace_back(fmt::format("thaw_at with {}, which updates more than one element at a time", (*other)->name()),
                        "take adam, lion or sgd, or leave thaw_at out");
  }
  if (config.train.train_iters && thaw_at >= *config.train.train_iters) {
    errors.emplace_back(fmt::format("thaw_at {} is not before the last of train_iters {}", thaw_at,
                                    *config.train.train_iters),
                        "lower it, or leave it out: the weights then stay frozen");
  }
}

}  // namespace

std::vector<UserError> check_freeze(const Config& config) {
  std::vector<UserError> errors;
  if (config.train.freeze.empty()) {
    if (config.train.thaw_at) {
      errors.emplace_back("thaw_at is given, and freeze names no weights", "name them with freeze");
    }
    return errors;
  }
  if (config.train.thaw_at) check_thaw(config, *config.train.thaw_at, errors);
  for (const std::string& expression : config.train.freeze) {
    try {
      const std::regex read(expression);
    } catch (const std::regex_error& error) {
      errors.emplace_back(fmt::format("freeze: '{}' is no regular expression: {}", expression, error.what()),
                          "write one of ECMAScript's form, such as model\\.layers\\.[0-3]\\..*");
    }
  }
  if (config.lora.enabled) {
    errors.emplace_back("freeze with lora.enabled, which freezes all weights but the adapters",
                        "leave one of them out");
  }
  return errors;
}

std::set<const Parameter*> named_to_freeze(const Config& config, const std::vector<Parameter*>& parameters) {
  std::set<const Parameter*> named;
  const std::vector<std::regex> expressions = compiled(config.train.freeze);
  for (const Parameter* parameter : parameters) {
    const auto& pieces = parameter->placement().pieces;
    if (std::ranges::any_of(pieces, [&](const auto& piece) { return is_named(expressions, piece.name); })) {
      named.insert(parameter);
    }
  }
  return named;
}

void freeze_weights(const Config& config, const std::vector<Parameter*>& parameters) {
  if (config.train.freeze.empty() || config.train.thaw_at) return;
  const std::set<const Parameter*> named = named_to_freeze(config, parameters);
  for (Parameter* parameter : parameters) {
    if (named.contains(parameter)) parameter->set_trainable(false);
  }
}

void check_frozen(const Config& config, const std::vector<Parameter*>& parameters, Group& world) {
  if (config.train.freeze.empty()) return;
  const std::vector<std::regex> expressions = compiled(config.train.freeze);
  const std::set<const Parameter*> named_parameters = named_to_freeze(config, parameters);
  std::string half_named, example;
  std::set<std::string> frozen, trained;
  std::vector<double> found(expressions.size(), 0);
  for (const Parameter* parameter : parameters) {
    std::string named, other;
    if (!parameter->placement().pieces.empty()) example = parameter->placement().pieces[0].name;
    for (const auto& piece : parameter->placement().pieces) {
      (is_named(expressions, piece.name) ? named : other) = piece.name;
      (named_parameters.contains(parameter) ? frozen : trained).insert(piece.name);
      for (size_t i = 0; i < expressions.size(); ++i) found[i] += std::regex_match(piece.name, expressions[i]) ? 1 : 0;
    }
    if (!named.empty() && !other.empty()) half_named = fmt::format("{} and not {}", named, other);
  }
  // A layer with a frozen weight may have no graph, and then its bias would get no gradient.
  for (const std::string& name : frozen) {
    if (!name.ends_with(".weight")) continue;
    const std::string bias = name.substr(0, name.size() - std::string_view("weight").size()) + "bias";
    if (trained.contains(bias)) half_named = fmt::format("{} and not {}", name, bias);
  }
  for (size_t i = 0; i < expressions.size(); ++i) {
    if (world.reduced(found[i], ReduceOp::kMax, "frozen weights") > 0) continue;
    throw UserError(fmt::format("freeze: no weight of the model has a name like '{}'", config.train.freeze[i]),
                    fmt::format("an expression is about a whole name, such as {}", example));
  }
  for (const std::string& text : gather_texts(world, half_named, "frozen weights")) {
    if (text.empty()) continue;
    throw UserError(fmt::format("freeze means {}, which are frozen together", text),
                    "let the expressions mean all of them, or none");
  }
  if (world.reduced(trained.empty() ? 0 : 1, ReduceOp::kMax, "trained weights") > 0) return;
  throw UserError("freeze means all weights of the model: nothing would be trained", "name fewer");
}

}  // namespace megalith
