#include "compat/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compat/benchmark_rules.h"
#include "compat/launch_rules.h"
#include "compat/script_values.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr int kDryGpus = 8;  // of a machine, in a dry run

DryRunKind dry_run_kind(const std::string& text) {
  if (text == "json") return DryRunKind::kJson;
  return text == "1" || text == "true" ? DryRunKind::kText : DryRunKind::kNone;
}

void check_refused(const ScriptValues& values, LaunchPlan& plan) {
  for (const ScriptValue& one : values.all()) {
    if (one.variable->kind != VariableKind::kRefused || one.is_default || one.value == one.variable->neutral) continue;
    plan.errors.emplace_back(fmt::format("{} is not supported: {}", one.text(), one.variable->reason),
                             fmt::format("leave {} out", one.spelling));
  }
}

// The options that a variable became: "--tensor_model_parallel_size 2".
std::string options_from(const LaunchPlan& plan, const ScriptValue& value) {
  std::string text;
  for (const std::vector<PlannedOption>* options : {&plan.options, &plan.inputs}) {
    for (const PlannedOption& option : *options) {
      if (option.variable != value.spelling) continue;
      text += fmt::format("{}--{} {}", text.empty() ? "" : " ", option.name, option.value);
    }
  }
  return text;
}

std::string meaning_of(const LaunchPlan& plan, const ScriptValue& value) {
  const ScriptVariable& row = *value.variable;
  switch (row.kind) {
    case VariableKind::kOption:
    case VariableKind::kOptions: {
      if (row.name() == "MODEL_SIZE") return "--config " + plan.config;
      const std::string options = options_from(plan, value);
      return options.empty() ? "nothing to do here" : options;
    }
    case VariableKind::kExported:
      return "exported";
    case VariableKind::kNoEffect:
      return fmt::format("no effect here: {}", row.reason);
    case VariableKind::kRefused:
      return "asks for nothing";
    case VariableKind::kLaunching:
    case VariableKind::kLogging:
      return std::string(name_of(row.kind));
  }
  return "";
}

// A line for each variable that was set, and one for all defaults.
std::vector<std::string> what_became(const ScriptValues& values, const LaunchPlan& plan) {
  std::vector<std::string> lines, defaults;
  for (const ScriptValue& one : values.all()) {
    const VariableKind kind = one.variable->kind;
    if (one.is_default) {
      if (kind != VariableKind::kExported) defaults.push_back(one.text());
      continue;
    }
    // Leftovers of other tools in the environment would fill the screen.
    const std::string said = one.variable->is_secret ? one.spelling + " (not shown)" : one.text();
    lines.push_back(fmt::format("{}: {}", said, meaning_of(plan, one)));
  }
  if (!defaults.empty()) {
    lines.push_back(fmt::format("not set, and so {}'s own: {}", row_of(plan.front_end).name, fmt::join(defaults, " ")));
  }
  return lines;
}

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

// Replaces whole words equal to `from`.
void replace_words(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    const size_t end = at + from.size();
    // Quoted text is what the user wrote, or could.
    if ((at > 0 && (is_word(text[at - 1]) || text[at - 1] == '\'' || text[at - 1] == '-')) ||
        (end < text.size() && is_word(text[end]))) {
      at = end;
      continue;
    }
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

std::vector<std::string> words_of(const LaunchPlan& plan, const std::vector<PlannedOption>& options) {
  std::vector<std::string> words;
  if (!plan.config.empty()) words.insert(words.end(), {"--config", plan.config});
  for (const PlannedOption& option : options) {
    words.push_back("--" + option.name);
    if (option.name == "data_path") {
      const std::vector<std::string> paths = split_words(option.value);
      words.insert(words.end(), paths.begin(), paths.end());
    } else {
      words.push_back(option.value);
    }
  }
  words.insert(words.end(), plan.user_options.begin(), plan.user_options.end());
  return words;
}

}  // namespace

std::string LaunchPlan::command_name() const {
  return std::string(row_of(benchmark ? FrontEnd::kBenchmark : front_end).name);
}

const PlannedOption* LaunchPlan::find(std::string_view name) const {
  const auto found =
      std::find_if(options.begin(), options.end(), [&](const PlannedOption& one) { return one.name == name; });
  return found == options.end() ? nullptr : &*found;
}

bool LaunchPlan::is_typed(const std::string& name) const {
  return std::any_of(user_options.begin(), user_options.end(), [&](const std::string& word) {
    const std::string option = fold_name(word.substr(0, word.find('=')));
    return option == "__" + name || option == name;
  });
}

void LaunchPlan::set(PlannedOption option) {
  drop(option.name);
  options.push_back(std::move(option));
}

void LaunchPlan::set_fixed() {
  for (const auto& [name, value] : row_of(front_end).fixed) set({.name = name, .value = value});
}

void LaunchPlan::drop(std::string_view name) {
  std::erase_if(options, [&](const PlannedOption& one) { return one.name == name; });
}

std::vector<std::string> LaunchPlan::arguments() const {
  std::vector<PlannedOption> all = options;
  all.insert(all.end(), inputs.begin(), inputs.end());
  return words_of(*this, all);
}

std::vector<std::string> LaunchPlan::arguments_without_inputs() const {
  std::vector<PlannedOption> all = options;
  if (!inputs.empty()) all.push_back({.name = "mock_data", .value = "true"});
  return words_of(*this, all);
}

LaunchPlan plan_launch(const LaunchInputs& inputs) {
  if (inputs.front_end == FrontEnd::kBenchmark) {
    if (const BenchmarkTag* tag = tag_of_other_script(inputs.words)) return plan_tagged_benchmark(*tag, inputs);
  }
  LaunchPlan plan;
  plan.front_end = inputs.front_end;
  const ScriptValues values(inputs, plan.errors);
  plan.user_options = values.options();
  plan.dry_run = dry_run_kind(values.text("DRY_RUN"));
  plan.num_gpus = plan.dry_run == DryRunKind::kNone ? inputs.count_gpus() : kDryGpus;
  plan.is_tiny = values.is_on("TINY");
  plan.starts = !values.is_on("NO_TRAINING");
  check_refused(values, plan);
  plan_ranks(values, inputs, plan);
  if (has(kPrimusScripts, plan.front_end)) {
    plan_primus_options(values, inputs, plan);
  } else if (has(kBenchmarkScripts, plan.front_end)) {
    plan_benchmark_options(values, inputs, plan);
  } else if (has(kStanfordScripts, plan.front_end)) {
    plan_stanford_options(values, inputs, plan);
  } else {
    plan_rocm_options(values, inputs, plan);
  }
  plan_log(values, inputs, plan);
  plan_exports(values, inputs, plan);
  std::vector<std::string> lines = what_became(values, plan);
  plan.notes.insert(plan.notes.begin(), lines.begin(), lines.end());
  return plan;
}

UserError in_users_words(const UserError& error, const LaunchPlan& plan) {
  std::string message = error.message(), remedy = error.remedy();
  for (std::string* text : {&message, &remedy}) {
    for (const PlannedOption& option : plan.options) {
      if (option.variable.empty() || plan.is_typed(option.name)) continue;
      const std::string said = said_as(option.variable, option.given);
      replace_words(*text, fmt::format("{} {}", option.name, option.value), said);
      replace_words(*text, "--" + option.name, option.variable);
      replace_words(*text, option.name, option.variable);
    }
  }
  return UserError(message, remedy);
}

}  // namespace megalith
