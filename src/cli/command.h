// A subcommand of the program, and what it is called with.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/resolve.h"
#include "core/log.h"

namespace megalith {

// Exit codes of the program (contract; see ARCHITECTURE.md).
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUserError = 2;
inline constexpr int kExitSignal = 3;

inline constexpr std::string_view kProgramVersion = "0.1.0";

struct CommandContext {
  std::vector<std::string> arguments;  // behind the subcommand's name
  std::map<std::string, std::string> environment;
  std::filesystem::path config_root;  // the folder configs/ that came with the program
  Logger& log;

  // Configuration sources for a command whose options are read from `arguments`: --config FILE is taken out.
  ConfigInputs config_inputs() const;
  bool wants_help() const;  // --help or -h is among the arguments
};

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(CommandContext& context);
};

std::span<const Command> commands();

// Runs the topic that the first argument names, with the arguments behind it; prints the topics for --help. UserError
// when there is none or an unknown one.
int run_topic(CommandContext& context, std::string_view command, std::span<const Command> topics);

int run_train(CommandContext& context);
int run_prepare(CommandContext& context);
int run_fetch(CommandContext& context);
int run_generate(CommandContext& context);
int run_evaluate(CommandContext& context);
int run_inspect(CommandContext& context);
int run_convert(CommandContext& context);
int run_bench(CommandContext& context);
int run_plan(CommandContext& context);
int run_doctor(CommandContext& context);

}  // namespace megalith
