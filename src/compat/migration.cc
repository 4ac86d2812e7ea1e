#include "compat/migration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/dialect.h"
#include "config/resolve.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// As Primus's guides spell it.
std::string spelled(const std::string& option) { return option == "fp8_format" ? "fp8" : option; }

std::string quoted_list(const std::vector<std::string>& texts) {
  return texts.empty() ? "" : fmt::format("`{}`", fmt::join(texts, "` `"));
}

std::string word_cell(const MigrationRow& row) {
  std::string cell = fmt::format("`{}`", row.word);
  const auto& spellings = row.variable->spellings;
  if (spellings.size() > 1)
    cell += fmt::format(", also `{}`", fmt::join(spellings.begin() + 1, spellings.end(), "`, `"));
  if (!row.context.empty()) cell += fmt::format(" beside `{}`", row.context);
  return cell;
}

std::string rows_text() {
  std::string text = "| variable | keys of an experiment file | options |\n| --- | --- | --- |\n";
  for (const MigrationRow& row : migration_rows()) {
    std::vector<std::string> keys, options;
    if (!row.config.empty()) {
      keys.push_back(fmt::format("model: {}.yaml", row.config));
      options.push_back(fmt::format("--config {}", row.config));
    }
    for (const auto& [name, value] : row.values) {
      keys.push_back(fmt::format("{}: {}", spelled(name), value));
      options.push_back(fmt::format("--{} {}", spelled(name), value));
    }
    text += fmt::format("| {} | {} | {} |\n", word_cell(row), quoted_list(keys), quoted_list(options));
  }
  return text;
}

std::string others_text() {
  std::string text = "| variable | Primus's scripts | without a script |\n| --- | --- | --- |\n";
  for (const ScriptVariable& row : script_variables()) {
    if (row.kind != VariableKind::kLaunching && row.kind != VariableKind::kLogging) continue;
    MEGALITH_CHECK(!row.typed.empty(), "the migration guide does not say what {} is", row.name());
    text += fmt::format("| `{}` | {} | {} |\n", row.name(), row.acts_in(FrontEnd::kPrimus) ? "the same" : "none",
                        row.typed);
  }
  return text;
}

std::string unsupported_text() {
  std::string text = "| variable | why |\n| --- | --- |\n";
  for (const ScriptVariable& row : script_variables()) {
    if (row.kind == VariableKind::kNoEffect) text += fmt::format("| `{}` | no effect: {} |\n", row.name(), row.reason);
    if (row.kind == VariableKind::kRefused) text += fmt::format("| `{}` | refused: {} |\n", row.name(), row.reason);
  }
  return text;
}

// A command over several lines of at most kColumns.
std::string folded(const std::string& command, std::string_view indent) {
  constexpr size_t kColumns = 100;
  std::string text;
  const std::vector<std::string> lines = wrap(command, kColumns);
  for (size_t i = 0; i < lines.size(); ++i) {
    text += fmt::format("{}{}{}\n", i == 0 ? "" : indent, lines[i], i + 1 < lines.size() ? " \\" : "");
  }
  return text;
}

std::string commands_text() {
  std::string text;
  for (const MigratedCommand& one : migrated_commands()) {
    const auto with_space = [](const std::string& words) { return words.empty() ? "" : words + " "; };
    text += "```sh\n# not run: it needs GPUs\n" +
            folded(fmt::format("{}{} {}", with_space(one.variables), one.launcher, one.script), "  ");
    if (!one.settings.empty()) text += fmt::format("# which sets {}\n", one.settings);
    text += "# in Primus's form:\n" + folded(fmt::format("{}EXP={} bash {} {}", with_space(one.primus_variables),
                                                         one.experiment, one.primus_script, one.options),
                                             "  ");
    text += "# and after it, for the same numbers:\n" + folded("  " + one.same_numbers, "  ") + "```\n\n";
  }
  return text;
}

}  // namespace

LaunchPlan plan_example(FrontEnd front_end, const std::string& words) {
  LaunchInputs inputs;
  inputs.front_end = front_end;
  inputs.words = split_words(words);
  inputs.now = "now";
  inputs.count_gpus = [] { return 8; };
  inputs.exists = [](const std::string&) { return true; };
  LaunchPlan plan = plan_launch(inputs);
  throw_if_any(plan.errors);
  return plan;
}

std::vector<MigrationRow> migration_rows() {
  std::vector<MigrationRow> rows;
  for (const DialectRow& one : dialect_rows("migration", {"script", "word", "beside"})) {
    const std::string &word = one.cells[1], &context = one.cells[2];
    const FrontEndRow* script = find_front_end(one.cells[0]);
    MEGALITH_CHECK(script != nullptr, "{}: there is no script {}", one.where, one.cells[0]);
    MigrationRow row{.variable = find_script_variable(word.substr(0, word.find('='))),
                     .front_end = script->id,
                     .context = context,
                     .word = word,
                     .config = {},
                     .values = {}};
    MEGALITH_CHECK(row.variable != nullptr, "{}: {} is no variable", one.where, word);
    // MOCK_DATA=0 is refused without the word that names the data.
    const LaunchPlan without = plan_example(script->id, context == "MOCK_DATA=0" ? "" : context);
    const LaunchPlan with = plan_example(script->id, context + " " + word);
    if (with.config != without.config) row.config = with.config;
    for (const PlannedOption& option : with.options) {
      const PlannedOption* before = without.find(option.name);
      if (before == nullptr || before->value != option.value) row.values.emplace_back(option.name, option.value);
    }
    for (const PlannedOption& option : without.options) {
      if (with.find(option.name) == nullptr) {
        row.values.emplace_back(option.name, option.value == "true" ? "false" : "null");
      }
    }
    MEGALITH_CHECK(!row.config.empty() || !row.values.empty(), "{}: {} changes nothing", one.where, word);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::span<const MigratedCommand> migrated_commands() {
  static const std::vector<MigratedCommand> commands = [] {
    std::vector<MigratedCommand> all;
    for (const DialectRow& row :
         dialect_rows("migration_commands", {"source", "script", "shell", "file", "variables", "settings",
                                             "primus_variables", "experiment", "primus_file", "options", "same"})) {
      const auto& c = row.cells;
      const FrontEndRow* script = find_front_end(c[1]);
      MEGALITH_CHECK(script != nullptr, "{}: there is no script {}", row.where, c[1]);
      all.push_back({c[0], script->id, c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10]});
    }
    return all;
  }();
  return commands;
}

std::string migration_page() {
  return fmt::format(
      "# From one tool's words to another's\n\n"
      "People train with the variables of Megatron-LM's scripts, ROCm's or Stanford's, with the keys of Primus's\n"
      "experiment files, or with options. Here they stand side by side. This page is printed by\n"
      "`megalith launch --migration` from the table and the rules by which `megalith launch` reads variables; a test\n"
      "resolves every row in its three forms to one configuration. [scripts.md](scripts.md) says what each variable\n"
      "means and what it is unless it is set;\n"
      "[migrate_primus.md](migrate_primus.md) has keys that are no variables, and\n"
      "[migrate_finetuners.md](migrate_finetuners.md) the words of axolotl, LLaMA-Factory and TRL.\n\n"
      "## The model, its layout and its data\n\n"
      "What a word changes, and nothing else: `FSDP=1` switches off what it replaces, so there are several keys for "
      "it.\n"
      "A key stands below `overrides` of the file, but for `model`. `null` takes back what the script says by itself. "
      "A\n"
      "key also works as an option after either tool's script, and wins over the variable.\n\n{}\n"
      "`train_data_path: FILES` of an experiment file reads the files whole for training; `data_path` divides them by\n"
      "`split`, as the scripts do.\n\n"
      "## Processes and logs\n\n{}\n"
      "Variables of libraries (`NCCL_IB_HCA`, `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, `NCCL_IB_GID_INDEX`,\n"
      "`HF_TOKEN`, …) are the same for all: export them, or write them into `env:` of an experiment file.\n\n"
      "## What has no counterpart\n\n{}\n"
      "## Commands\n\n"
      "The training commands that the guide to ROCm's Megatron-LM prints, in the form of the guide to Primus. The two\n"
      "tools' files have other learning rates and the like by themselves: with the last lines the configurations are\n"
      "one. With `DRY_RUN=1` in front both show what they resolve to.\n\n{}"
      "`DATASET=wiki TOKENIZER_MODEL=… bash examples/llama/prepare_dataset.sh` prepares data for either: its prefix "
      "is\n"
      "`DATA_PATH` there, and `data_path` or `train_data_path` in a file. Container commands are in\n"
      "[images.md](images.md), judging a run as CVS does in [verify.md](verify.md).\n",
      rows_text(), others_text(), unsupported_text(), commands_text());
}

}  // namespace megalith
