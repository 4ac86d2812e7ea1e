// The program: finds the subcommand, runs it, turns errors into messages and exit codes.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/log_copy.h"
#include "config/environment.h"
#include "core/error.h"
#include "core/strings.h"
#include "device/memory.h"

namespace megalith {
namespace {

std::string usage() {
  std::string text =
      "megalith: pre-trains and fine-tunes large models\n\n"
      "usage: megalith <command> [options]\n\n";
  for (const Command& command : commands()) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  text += "\n'megalith <command> --help' lists the options of a command.\n";
  return text;
}

// configs/ lies beside the folder of the program in a source tree (build/megalith), under share/ when installed.
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

int run(int argc, char** argv, Logger& log, LogCopy& log_copy) {
  if (argc < 2) {
    std::fputs(usage().c_str(), stderr);
    return kExitUserError;
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(usage().c_str(), stdout);
    return kExitSuccess;
  }
  if (name == "--version") {
    fmt::print("megalith {}\n", kProgramVersion);
    return kExitSuccess;
  }
  CommandContext context{{argv + 2, argv + argc}, environment_snapshot(), {}, log, name, commands()};
  context.config_root = find_config_root(context.environment);
  context.log_copy = &log_copy;
  context.words.assign(argv, argv + argc);
  for (const Command& command : commands()) {
    if (command.name == name) return command.run(context);
  }
  const std::string nearest = nearest_command(name);
  throw UserError(
      fmt::format("unknown command '{}'.{}", name, nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)),
      "run 'megalith --help' for the list");
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using namespace megalith;
  tune_malloc_for_training();  // before any large allocation
  LogCopy log_copy;
  Logger log(log_copy.settings());  // outlives the command: with several ranks it knows who speaks
  try {
    return run(argc, argv, log, log_copy);
  } catch (const UserError& error) {
    log.error("{}", error.what());
    return kExitUserError;
  } catch (const InternalError& error) {
    log.error("internal error: {}\n  this is a fault of the program; please report it", error.what());
    return kExitFailure;
  } catch (const std::bad_alloc&) {
    log.error("out of memory");
    return kExitFailure;
  } catch (const c10::Error& error) {
    log.error("{}", error.what_without_backtrace());  // such as memory that cannot be had
    return kExitFailure;
  } catch (const std::exception& error) {
    log.error("{}", error.what());
    return kExitFailure;
  }
}
