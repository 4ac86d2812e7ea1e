// The program: finds the subcommand, runs it, turns errors into messages and exit codes.
#include <c10/util/Exception.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/build_commit.h"
#include "cli/command.h"
#include "cli/entries.h"
#include "cli/log_copy.h"
#include "cli/print.h"
#include "config/environment.h"
#include "core/error.h"
#include "core/machine_error.h"
#include "core/strings.h"
#include "device/memory.h"
#include "launch/last_words.h"
#include "train/step_check.h"

namespace megalith {
namespace {

std::string usage() {
  std::string text =
      "megalith: pre-trains and fine-tunes large models\n\n"
      "usage: megalith <command> [options]\n\n";
  for (const Command& command : commands()) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  text +=
      "\n'megalith <command> --help' shows the options of a command, 'megalith help <word>' explains an option or a "
      "topic.\n";
  return text;
}

// configs/ is beside the folder of the program in a source tree (build/megalith), under share/ when installed.
std::filesystem::path find_config_root(const std::map<std::string, std::string>& environment) {
  if (const auto found = environment.find("MEGALITH_CONFIGS"); found != environment.end()) return found->second;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "configs";
  const std::filesystem::path folder = program.parent_path();
  const std::filesystem::path installed = folder.parent_path() / "share" / "megalith" / "configs";
  return std::filesystem::exists(installed, error) ? installed : folder.parent_path() / "configs";
}

std::string nearest_command(std::string_view name) {
  std::string best;
  size_t best_distance = 3;
  for (const Command& command : commands()) {
    const size_t distance = edit_distance(name, command.name);
    if (distance < best_distance) {
      best = command.name;
      best_distance = distance;
    }
  }
  return best;
}

// The words after `megalith help` as a command: "prepare merge" becomes the command prepare with merge --help; a word
// that is no command is one about training.
std::string turn_into_command(std::vector<std::string>& words) {
  const std::string first = words[0];
  const std::span<const Command> all = commands();
  if (std::any_of(all.begin(), all.end(), [&](const Command& command) { return command.name == first; })) {
    words.erase(words.begin());
    // A topic comes before --help, any other word after it.
    const bool has_topics = first == "inspect" || first == "bench" || first == "prepare";
    words.insert(words.begin() + (has_topics && !words.empty() ? 1 : 0), "--help");
    return first;
  }
  words.insert(words.begin(), "--help");
  return "train";
}

int run(const std::vector<std::string>& words, Logger& log, LogCopy& log_copy) {
  if (words.size() < 2) {
    std::fputs(usage().c_str(), stderr);
    return kExitUserError;
  }
  std::string name = words[1];
  std::vector<std::string> arguments(words.begin() + 2, words.end());
  if (name == "--help" || name == "-h" || name == "help") {
    if (arguments.empty()) {
      print_text(usage());
      return kExitSuccess;
    }
    name = turn_into_command(arguments);
  }
  if (name == "--version") {
    print_out("{}\n", program_text());
    return kExitSuccess;
  }
  CommandContext context{std::move(arguments), environment_snapshot(), {}, log, name, commands()};
  context.config_root = find_config_root(context.environment);
  context.log_copy = &log_copy;
  context.words = words;
  for (const Command& command : commands()) {
    if (command.name == name) return command.run(context);
  }
  const std::string nearest = nearest_command(name);
  throw UserError(
      fmt::format("unknown command '{}'.{}", name, nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)),
      "run 'megalith --help' for the list");
}

// Results lost to a full disk are no success. Training and serving do without a console.
bool has_lost_results(std::string_view command) {
  if (command == "train" || command == "launch" || command == "serve") return false;
  return std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
}

// Memory of a long line is given back, so that `prepare` stays within its limit; that of ordinary lines is kept.
void tune_malloc_for_texts() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  std::set_terminate(end_for_uncaught_exception);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit (ulimit -f) is an error of its write
  const std::vector<std::string> words = with_entry_resolved({argv, argv + argc});
  const std::string command = words.size() > 1 ? words[1] : "", topic = words.size() > 2 ? words[2] : "";
  // Before any large allocation.
  if (command != "prepare" || topic == "flux") {
    tune_malloc_for_training();
  } else {
    tune_malloc_for_texts();
  }
  LogCopy log_copy;
  Logger log(log_copy.settings());  // outlives the command: with several ranks it knows which one speaks
  const auto end = [&](int code, std::string_view message) {
    log.error("{}", message);
    leave_error_file(environment_snapshot(), message);
    return code;
  };
  try {
    const int code = run(words, log, log_copy);
    if (code != kExitSuccess || !has_lost_results(command)) return code;
    return end(kExitFailure, "standard output could not be written: is its disk full?");
  } catch (const SilentExit& exit) {
    if (!exit.reason.empty()) leave_error_file(environment_snapshot(), exit.reason);
    return exit.code;
  } catch (const MachineError& error) {
    return end(kExitFailure, error.what());
  } catch (const UserError& error) {
    return end(kExitUserError, error.what());
  } catch (const InternalError& error) {
    return end(kExitFailure,
               fmt::format("internal error: {}\n  this is a fault of the program; please report it", error.what()));
  } catch (const StepFault& fault) {
    return end(fault.exit_code(), fault.what());
  } catch (const std::bad_alloc&) {
    return end(kExitFailure, "out of memory");
  } catch (const c10::Error& error) {
    return end(kExitFailure, error.what_without_backtrace());  // such as out of memory
  } catch (const std::exception& error) {
    return end(kExitFailure, error.what());
  }
}
