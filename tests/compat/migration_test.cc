// Every row of the migration guide is one configuration in its three forms, and every command in its two; the guide has
// a row for every variable that becomes options.
#include "compat/migration.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/file.h"
#include "core/strings.h"
#include "kinds/kinds.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "train/config.h"

namespace megalith {
namespace {

using Texts = std::map<std::string, std::string>;

// Every option's value after these words of `megalith train`; nothing is opened.
Texts resolved_texts(const std::vector<std::string>& arguments) {
  Resolved resolved(all_kinds());
  ConfigInputs inputs;
  inputs.config_root = test::source_dir() / "configs";
  inputs.arguments = arguments;
  Config& config = resolved.config;
  OptionSet options(config);
  for (const UserError& error : try_resolve(options, inputs).errors) ADD_FAILURE() << error.what();
  Texts texts;
  for (const auto& option : options.options()) texts[option->name()] = option->text();
  return texts;
}

std::vector<std::string> as_options(const MigrationRow& row, const LaunchPlan& base) {
  const std::string& config = row.config.empty() ? base.config : row.config;
  std::vector<std::string> words;
  if (!config.empty()) words = {"--config", config};
  const auto say = [&](const std::string& name, const std::string& value) {
    words.push_back("--" + name);
    const std::vector<std::string> parts = name == "data_path" ? split_words(value) : std::vector<std::string>{value};
    words.insert(words.end(), parts.begin(), parts.end());
  };
  for (const PlannedOption& option : base.options) say(option.name, option.value);
  for (const auto& [name, value] : row.values) say(name, value);
  return words;
}

std::string as_experiment(const MigrationRow& row, const LaunchPlan& base) {
  Texts values;
  for (const PlannedOption& option : base.options) values[option.name] = option.value;
  for (const auto& [name, value] : row.values) values[name] = value;
  const std::string& config = row.config.empty() ? base.config : row.config;
  std::string text = "modules:\n  pre_trainer:\n    framework: megatron\n";
  if (!config.empty()) text += fmt::format("    model: {}.yaml\n", config);
  text += "    overrides:\n";
  for (const auto& [name, value] : values) text += fmt::format("      {}: {}\n", name, value);
  return text;
}

// "name: one, other" of what differs.
std::string difference(const Texts& one, const Texts& other) {
  std::string text;
  for (const auto& [name, value] : one) {
    if (value != other.at(name)) text += fmt::format("{}: {}, {}\n", name, value, other.at(name));
  }
  return text;
}

TEST(Migration, EveryRowIsOneConfigurationInItsThreeForms) {
  const test::TemporaryFolder folder;
  for (const MigrationRow& row : migration_rows()) {
    const Texts variable = resolved_texts(plan_example(row.front_end, row.context + " " + row.word).arguments());
    const LaunchPlan base = plan_example(row.front_end, row.context == "MOCK_DATA=0" ? "" : row.context);
    EXPECT_EQ(difference(variable, resolved_texts(as_options(row, base))), "") << row.word << ": variable, option";
    const std::string file = folder.write("experiment.yaml", as_experiment(row, base)).string();
    EXPECT_EQ(difference(variable, resolved_texts({"--config", file})), "") << row.word << ": variable, key";
    EXPECT_NE(variable, resolved_texts(base.arguments())) << row.word << " changes nothing";
  }
}

TEST(Migration, EveryVariableThatBecomesOptionsHasARow) {
  std::set<std::string_view> shown;
  for (const MigrationRow& row : migration_rows()) shown.insert(row.variable->name());
  for (const ScriptVariable& row : script_variables()) {
    if (row.kind != VariableKind::kOption && row.kind != VariableKind::kOptions) continue;
    if (row.front_ends == kBenchmarkScripts) continue;  // docs/benchmark_scripts.md has them
    EXPECT_TRUE(shown.contains(row.name())) << row.name();
  }
}

// What two forms of a run may say differently, because it is one run all the same.
void forget_what_is_equal(const OptionSet& options, Texts& texts) {
  const std::set<std::string> layout = {"Parallelism", "Pipeline parallelism", "Data parallelism",
                                        "Recomputation and offloading"};
  for (const auto& option : options.options()) {
    if (!option->traits().changes_numbers && !layout.contains(option->group())) texts.erase(option->name());
  }
  texts.erase("distributed_timeout_minutes");  // how long ranks wait for one another
  // Read only with FP8; made of one tensor-parallel rank; two words for no evaluation.
  if (texts["fp8_format"] == "null") {
    std::erase_if(texts, [](const auto& one) { return one.first.starts_with("fp8_"); });
  }
  if (texts["tensor_model_parallel_size"] == "1") texts.erase("sequence_parallel");
  if (texts["eval_iters"] == "-1") texts["eval_iters"] = "0";
}

TEST(Migration, EveryCommandIsOneConfigurationInBothForms) {
  Config config;
  const OptionSet options(config);
  for (const MigratedCommand& one : migrated_commands()) {
    const LaunchPlan rocm = plan_example(one.front_end, fmt::format("{} {}", one.variables, one.settings));
    const std::string experiment = (test::source_dir() / one.experiment).string();
    const std::string itself = one.primus_script.ends_with("run_slurm_pretrain.sh") ? "SLURM=1" : "";
    const LaunchPlan primus = plan_example(
        FrontEnd::kPrimus,
        fmt::format("EXP={} {} {} {} {}", experiment, itself, one.primus_variables, one.options, one.same_numbers));
    Texts first = resolved_texts(rocm.arguments()), second = resolved_texts(primus.arguments());
    forget_what_is_equal(options, first);
    forget_what_is_equal(options, second);
    EXPECT_GT(first.size(), 100U);
    EXPECT_EQ(difference(first, second), "") << one.source;
    EXPECT_EQ(rocm.num_nodes, primus.num_nodes) << one.source;
    EXPECT_EQ(rocm.node_rank, primus.node_rank) << one.source;
    EXPECT_EQ(rocm.master_address, primus.master_address) << one.source;
  }
}

TEST(Migration, WhatAScriptSetsByItselfIsWhatThePageSays) {
  for (const MigratedCommand& one : migrated_commands()) {
    const std::string script = read_file(test::source_dir() / one.script);
    for (const std::string& word : split_words(one.settings)) {
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
      EXPECT_NE(script.find(fmt::format("{0}=\"${{{0}:-", name)), std::string::npos) << name;
      EXPECT_NE(script.find(fmt::format(":-{}}}", value)), std::string::npos) << word;
    }
  }
}

}  // namespace
}  // namespace megalith
