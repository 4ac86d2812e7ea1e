// What is started: the command line of a plan, and a process that is waited for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compat/launch_plan.h"

namespace megalith {

// How the program and what it needs are called on this machine.
struct LaunchTools {
  std::string program;                        // this program
  std::optional<std::string> torchrun;        // nothing: there is none
  std::optional<std::string> container_tool;  // docker or podman
  std::string folder;                         // the current one
};

// From PATH; torchrun also from the Python environment whose LibTorch this program uses.
LaunchTools find_launch_tools(const EnvironmentMap& environment);

// The trainer, by torchrun where there are several ranks. UserError when torchrun is missing.
std::vector<std::string> training_command(const LaunchPlan& plan, const LaunchTools& tools,
                                          const std::vector<std::string>& arguments);

// `words` of `megalith launch` again, on every machine of Slurm's, or in a container. UserError when there is no
// container tool or no image.
std::vector<std::string> slurm_command(const LaunchPlan& plan, const LaunchTools& tools,
                                       const std::vector<std::string>& words, bool is_in_allocation);
std::vector<std::string> container_command(const LaunchPlan& plan, const LaunchTools& tools,
                                           const std::vector<std::string>& words,
                                           const std::vector<std::string>& variables);

// One word in single quotes; a command with quotes where a word needs them.
std::string shell_quoted(std::string_view word);
std::string shell_text(const std::vector<std::string>& command);

// Runs a command and returns its exit code, 128 + N for signal N; SIGTERM and SIGINT that come meanwhile go to it.
//   output_file  takes its standard output and error, which the console then does not show
int run_and_wait(const std::vector<std::string>& command, const std::optional<std::string>& output_file);

// Whether standard output is this file, by device and inode.
bool is_standard_output(const std::string& path);

}  // namespace megalith
