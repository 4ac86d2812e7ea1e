// What subcommands share.
#include "cli/command.h"

#include <algorithm>
#include <cstdio>

#include "core/error.h"

namespace megalith {
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
