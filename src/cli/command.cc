// Code shared by subcommands.
#include "cli/command.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

#include "cli/acting_options.h"
#include "cli/help.h"
#include "cli/print.h"
#include "compat/file_dialects.h"
#include "compat/torchtitan_job.h"
#include "config/help.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

// The commands with an option of that name, in order. Topics of the running command's family are named in full, of
// others only the family: "inspect data" in "inspect tokenizer", otherwise "inspect".
//   sets  of each command; filled at the first call, which takes a while
std::vector<std::string> commands_with_option(std::span<const Command> commands,
                                              std::vector<std::vector<CommandOptions>>& sets, const std::string& here,
                                              std::string_view name) {
  if (sets.empty()) std::ranges::transform(commands, std::back_inserter(sets), [](auto& one) { return one.options(); });
  std::vector<std::string> found;
  for (size_t i = 0; i < commands.size(); ++i) {
    const Command& command = commands[i];
    const bool is_own = here == command.name || here.starts_with(fmt::format("{} ", command.name));
    for (const CommandOptions& options : sets[i]) {
      if (options.command == here) continue;
      if (std::find(options.names.begin(), options.names.end(), name) == options.names.end()) continue;
      std::string shown = is_own ? options.command : std::string(command.name);
      if (std::find(found.begin(), found.end(), shown) == found.end()) found.push_back(std::move(shown));
    }
  }
  return found;
}

// An option for shell completion, from its type as in help.
OptionWord completed(const Option& option) {
  OptionWord word{.name = option.name(),
                  .is_switch = option.is_switch(),
                  .is_list = option.is_list(),
                  .meaning = first_sentence(option.help())};
  std::string type = option.type_text();
  word.takes_text = type == "text" || type == "list of texts";
  for (const std::string_view prefix : {"one of ", "list of "}) {
    if (!type.starts_with(prefix) || type == "list of texts" || type == "list of integers" ||
        type == "list of numbers") {
      continue;
    }
    type.erase(0, prefix.size());
    std::replace(type.begin(), type.end(), ',', ' ');
    word.values = split_words(type);
  }
  return word;
}

}  // namespace

CommandOptions command_options(std::string command, const OptionSet& options) {
  CommandOptions result{std::move(command), {}, {}};
  for (const std::unique_ptr<Option>& option : options.options()) {
    if (!acts_in(result.command, *option)) continue;
    std::vector<std::string>& names = result.names;
    names.push_back(option->name());
    names.insert(names.end(), option->aliases().begin(), option->aliases().end());
    names.insert(names.end(), option->opposites().begin(), option->opposites().end());
    result.words.push_back(completed(*option));
  }
  return result;
}

int run_topic(CommandContext& context, std::string_view command, std::span<const Command> topics) {
  std::string text = fmt::format("usage: megalith {} <topic> [options]\n\n", command);
  size_t width = 11;
  for (const Command& topic : topics) width = std::max(width, std::string_view(topic.name).size());
  for (const Command& topic : topics) text += fmt::format("  {:<{}} {}\n", topic.name, width, topic.summary);
  if (!context.arguments.empty()) {
    const std::string name = context.arguments[0];
    const auto topic = std::find_if(topics.begin(), topics.end(), [&](const Command& one) { return one.name == name; });
    if (topic != topics.end()) {
      context.arguments.erase(context.arguments.begin());
      context.command = fmt::format("{} {}", command, name);
      return topic->run(context);
    }
  }
  if (context.wants_help()) {
    print_out("{}", text);
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
  inputs.others = {
      .here = command,
      .with_option = [all = all_commands, here = command,
                      sets = std::make_shared<std::vector<std::vector<CommandOptions>>>()](
                         std::string_view name) { return commands_with_option(all, *sets, here, name); },
      .acts = [here = command](const Option& option) { return acts_in(here, option); },
  };
  inputs.readers = {{".toml", read_torchtitan_job}, {".yaml", read_primus_file}, {".yml", read_primus_file}};
  adopt_file_dialect(inputs);
  return inputs;
}

std::optional<std::vector<std::string>> CommandContext::read_words(OptionSet& options, std::string_view usage) {
  ConfigInputs inputs = config_inputs();
  inputs.allow_positional = true;
  Resolution resolution = resolve(options, inputs);
  if (resolution.wants_help) {
    print_help(*this, usage, options);
    return std::nullopt;
  }
  for (const std::string& note : resolution.notes) log.note("{}", note);
  return std::move(resolution.positional);
}

bool CommandContext::wants_help() const {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& word) {
    return word == "--help" || word == "-h" || word.starts_with("--help=");
  });
}

}  // namespace megalith
