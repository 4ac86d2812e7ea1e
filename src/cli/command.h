// A subcommand of the program and its context.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "config/resolve.h"
#include "core/log.h"

namespace megalith {

// Exit codes of the program (contract; see ARCHITECTURE.md).
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUserError = 2;
inline constexpr int kExitSignal = 3;

// Ends the program with this code, silently: another rank reports the reason.
struct SilentExit {
  int code = kExitFailure;
  std::string reason = {};  // reported by that rank
};

inline constexpr std::string_view kProgramVersion = "0.1.0";

struct CommandContext;
class LogCopy;

// An option, for shell completion.
struct OptionWord {
  std::string name;
  bool is_switch = false, is_list = false, takes_text = false;
  std::vector<std::string> values;  // choices
  std::string meaning;              // one sentence
};

// The options that have an effect in a command.
struct CommandOptions {
  std::string command;             // "prepare"; of a topic "prepare merge"
  std::vector<std::string> names;  // every name that sets one
  std::vector<OptionWord> words = {};
};

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(CommandContext& context);
  // Options of the command and of its topics; null for a topic.
  std::vector<CommandOptions> (*options)() = nullptr;
};

struct CommandContext {
  std::vector<std::string> arguments;  // after the subcommand's name
  std::map<std::string, std::string> environment;
  std::filesystem::path config_root;  // the folder configs/ shipped with the program
  Logger& log;
  std::string command = {};                    // "prepare"; of a topic "prepare merge"
  std::span<const Command> all_commands = {};  // of the program, to tell which command an unknown option belongs to
  LogCopy* log_copy = nullptr;                 // the logger's second output; null in tests
  std::vector<std::string> words = {};         // the whole command line

  // Configuration sources for a command that reads its options from `arguments`, without --config FILE.
  ConfigInputs config_inputs() const;
  // Reads options mixed with words, logs what reading reports, and returns the words. If help is asked for, prints it
  // and returns nothing.
  std::optional<std::vector<std::string>> read_words(OptionSet& options, std::string_view usage);
  bool wants_help() const;  // --help, -h or --help=WORD is among the arguments
};

std::span<const Command> commands();

CommandOptions command_options(std::string command, const OptionSet& options);

// The options declared by a command: those of structs with visit(), in one set.
template <typename... Structs>
CommandOptions options_of(std::string command) {
  std::tuple<Structs...> values;
  return std::apply([&](Structs&... structs) { return command_options(std::move(command), OptionSet(structs...)); },
                    values);
}

// Runs the topic named by the first argument with the arguments after it; prints the topics for --help. UserError if
// there is none or it is unknown.
int run_topic(CommandContext& context, std::string_view command, std::span<const Command> topics);

int run_train(CommandContext& context);
int run_launch(CommandContext& context);
int run_prepare(CommandContext& context);
int run_fetch(CommandContext& context);
int run_generate(CommandContext& context);
int run_chat(CommandContext& context);
int run_evaluate(CommandContext& context);
int run_serve(CommandContext& context);
int run_embed(CommandContext& context);
int run_inspect(CommandContext& context);
int run_convert(CommandContext& context);
int run_bench(CommandContext& context);
int run_presets(CommandContext& context);
int run_init(CommandContext& context);
int run_plan(CommandContext& context);
int run_doctor(CommandContext& context);
int run_verify(CommandContext& context);
int run_completion(CommandContext& context);

std::vector<CommandOptions> train_options();
std::vector<CommandOptions> launch_options();
std::vector<CommandOptions> prepare_options();
std::vector<CommandOptions> fetch_options();
std::vector<CommandOptions> generate_options();
std::vector<CommandOptions> chat_options();
std::vector<CommandOptions> evaluate_options();
std::vector<CommandOptions> serve_options();
std::vector<CommandOptions> embed_options();
std::vector<CommandOptions> inspect_options();
std::vector<CommandOptions> convert_options();
std::vector<CommandOptions> bench_options();
std::vector<CommandOptions> presets_options();
std::vector<CommandOptions> init_options();
std::vector<CommandOptions> plan_options();
std::vector<CommandOptions> doctor_options();
std::vector<CommandOptions> verify_options();
std::vector<CommandOptions> completion_options();

}  // namespace megalith
