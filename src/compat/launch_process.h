// The command line of a plan, and starting and waiting for a process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compat/launch_plan.h"

namespace megalith {

// Names of the program and its tools on this machine.
struct LaunchTools {
  std::string program;                        // this program
  std::optional<std::string> torchrun;        // nothing if missing
  std::optional<std::string> container_tool;  // docker or podman
  std::string folder;                         // the current one
};

// From PATH; torchrun also from the Python environment whose LibTorch this program uses.
LaunchTools find_launch_tools(const EnvironmentMap& environment);

// The trainer, started by torchrun for several ranks. UserError if torchrun is missing.
std::vector<std::string> training_command(const LaunchPlan& plan, const LaunchTools& tools,
                                          const std::vector<std::string>& arguments);

// `words` of `megalith launch` again, on every machine of a Slurm job or in a container. UserError if there is no
// container tool or image.
std::vector<std::string> slurm_command(const LaunchPlan& plan, const LaunchTools& tools,
                                       const std::vector<std::string>& words, bool is_in_allocation);
std::vector<std::string> container_command(const LaunchPlan& plan, const LaunchTools& tools,
                                           const std::vector<std::string>& words,
                                           const std::vector<std::string>& variables);

// shell_quoted: one word in single quotes. shell_text: a command, quoting only words that need it.
std::string shell_quoted(std::string_view word);
std::string shell_text(const std::vector<std::string>& command);

// Runs a command and returns its exit code, 128 + N for signal N; forwards SIGTERM and SIGINT to it.
//   output_file  receives its standard output and error instead of the console
int run_and_wait(const std::vector<std::string>& command, const std::optional<std::string>& output_file);

// True if standard output is this file, by device and inode.
bool is_standard_output(const std::string& path);

}  // namespace megalith
