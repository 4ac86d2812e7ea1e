// The table of subcommands, and what they share.
#include "cli/command.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace megalith {
namespace {

constexpr Command kCommands[] = {
    {"train", "pre-train or fine-tune a model", run_train},
    {"prepare", "JSON lines or plain text into .bin/.idx token files", run_prepare},
    {"fetch", "models, tokenizers and data sets from the Hugging Face hub into its cache", run_fetch},
    {"generate", "text from a checkpoint or a Hugging Face folder", run_generate},
    {"evaluate", "loss and perplexity on a data set", run_evaluate},
    {"inspect", "what is in a configuration, data set, tokenizer, checkpoint or model", run_inspect},
    {"convert", "Hugging Face folders and checkpoints of any layout into one another", run_convert},
    {"plan", "what a pipeline schedule costs, as a table and a picture", run_plan},
    {"doctor", "whether this machine, or all machines of a launch, are fit for a run", run_doctor},
    {"bench", "speed of the operators and of training on this machine", run_bench},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

int run_topic(CommandContext& context, std::string_view command, std::span<const Command> topics) {
  std::string text = fmt::format("usage: megalith {} <topic> [options]\n\n", command);
  for (const Command& topic : topics) text += fmt::format("  {:<11} {}\n", topic.name, topic.summary);
  if (!context.arguments.empty()) {
    const std::string name = context.arguments[0];
    const auto topic = std::find_if(topics.begin(), topics.end(), [&](const Command& one) { return one.name == name; });
    if (topic != topics.end()) {
      context.arguments.erase(context.arguments.begin());
      return topic->run(context);
    }
  }
  if (context.wants_help()) {
    fmt::print("{}", text);
    return kExitSuccess;
  }
  throw UserError(
      context.arguments.empty() ? "no topic given" : fmt::format("unknown topic '{}'", context.arguments[0]), text);
}

ConfigInputs CommandContext::config_inputs() const {
  ConfigInputs inputs;
  inputs.arguments = arguments;
  inputs.config_root = config_root;
  inputs.environment = environment;
  return inputs;
}

bool CommandContext::wants_help() const {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

}  // namespace megalith
