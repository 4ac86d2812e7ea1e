// megalith init: a recipe with explained options, for a preset or a Hugging Face folder.
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/help.h"
#include "cli/print.h"
#include "config/presets.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "train/config.h"

namespace megalith {
namespace {

struct InitOptions {
  std::optional<std::string> output;

  void visit(OptionVisitor& v) {
    v.group("Recipe");
    v.field("output", output, "File to write; it must not exist yet. Default: NAME-pretrain.yaml here.");
  }
};

// A line of the recipe; one without effect is written as a comment, ready for use.
struct Line {
  std::string_view name, value;
  bool is_comment = false;
};

struct Topic {
  std::string_view title;
  std::vector<Line> lines;
};

// Options that nearly every run sets. Values suit a first run of any size; the comments are the options' own help.
const std::vector<Topic>& topics() {
  static const std::vector<Topic> all = {
      {"Data",
       {{"mock_data", "true"},
        {"data_path", "[data/mine_text_document]", true},
        {"split", "98,1,1", true},
        {"tokenizer_type", "HuggingFaceTokenizer", true},
        {"tokenizer_model", "org/name", true}}},
      {"Batch and duration",
       {{"seq_length", "4096", true},
        {"micro_batch_size", "1"},
        {"global_batch_size", "128"},
        {"train_iters", "1000"},
        {"bf16", "true"}}},
      {"Optimizer",
       {{"lr", "3.0e-4"},
        {"min_lr", "3.0e-5"},
        {"lr_decay_style", "cosine"},
        {"lr_warmup_iters", "100"},
        {"weight_decay", "0.1"},
        {"adam_beta2", "0.95"},
        {"clip_grad", "1.0"}}},
      {"Layout: how many ranks share a model",
       {{"tensor_model_parallel_size", "1"},
        {"pipeline_model_parallel_size", "1"},
        {"context_parallel_size", "1"},
        {"use_distributed_optimizer", "true"},
        {"recompute_granularity", "selective", true}}},
      {"What is kept and said",
       {{"save", "checkpoints", true},
        {"save_interval", "500", true},
        {"log_interval", "10"},
        {"eval_interval", "500"},
        {"eval_iters", "10"}}},
  };
  return all;
}

std::string comment(const std::string& text, std::string_view indent) {
  std::string lines;
  for (const std::string& line : wrap(text, 96)) lines += fmt::format("{}# {}\n", indent, line);
  return lines;
}

std::string recipe_text(const Preset& preset, const std::string& file) {
  Config config;
  const OptionSet options(config);
  const std::string name = preset.file.stem().string();
  std::string text = fmt::format(
      "# A recipe for {}, to be changed.\n"
      "#\n"
      "#   megalith train --config {} --dry_run     what would run\n"
      "#   megalith train --config {}\n"
      "#   megalith inspect config --config {}      every option and its value\n"
      "#\n",
      name, file, file, file);
  text += comment(about(preset), "");
  text += fmt::format(
      "exp_name: {}\n\nmodules:\n  pre_trainer:\n    framework: megalith\n"
      "    model: {}.yaml  # the architecture; what is written below wins over it\n    overrides:\n",
      name, name);
  for (const Topic& topic : topics()) {
    text += fmt::format("      # ---- {}\n", topic.title);
    for (const Line& line : topic.lines) {
      const Option* option = options.find(line.name);
      if (option == nullptr) throw InternalError(fmt::format("{} is no option", line.name));
      text += comment(option->help(), "      ");
      text += fmt::format("      {}{}: {}\n", line.is_comment ? "# " : "", line.name, line.value);
    }
    text += "\n";
  }
  text.pop_back();
  return text;
}

Preset named_preset(const std::string& name, const std::filesystem::path& root) {
  const std::filesystem::path file = find_config(name, root);
  for (const Preset& preset : list_presets(root)) {
    if (preset.file == file && !preset.is_experiment) return preset;
  }
  throw UserError(fmt::format("'{}' is no model that came with the program", name),
                  "'megalith presets' lists the models; a recipe can be copied as it is");
}

}  // namespace

int run_init(CommandContext& context) {
  InitOptions options;
  OptionSet set(options);
  const auto words = context.read_words(
      set,
      "usage: megalith init NAME [--output FILE]\n\n"
      "Writes a recipe for a model of 'megalith presets' that trains on made-up tokens until it is given data.");
  if (!words) return kExitSuccess;
  if (words->size() != 1) {
    throw UserError(fmt::format("init takes one name, and got {}", words->size()),
                    "megalith init NAME; 'megalith presets' lists the names");
  }
  const Preset preset = named_preset(words->front(), context.config_root);
  const std::string file = options.output.value_or(preset.name + "-pretrain.yaml");
  std::error_code code;
  if (std::filesystem::exists(file, code)) {
    throw UserError(fmt::format("{} exists", file), "name another file with --output");
  }
  write_file_atomic(file, recipe_text(preset, file));
  print_out("{}\n", file);
  context.log.note("try it: megalith train --config {} --dry_run", file);
  return kExitSuccess;
}

std::vector<CommandOptions> init_options() { return {options_of<InitOptions>("init")}; }

}  // namespace megalith
