#include "compat/launch_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "compat/process.h"
#include "core/error.h"
#include "core/visible_text.h"

namespace megalith {
namespace {

std::optional<std::string> find_in_path(const EnvironmentMap& environment, const std::string& name) {
  const auto path = environment.find("PATH");
  if (path == environment.end()) return std::nullopt;
  std::string_view folders = path->second;
  while (!folders.empty()) {
    const size_t end = std::min(folders.find(':'), folders.size());
    const std::string file = fmt::format("{}/{}", folders.substr(0, end), name);
    if (end > 0 && ::access(file.c_str(), X_OK) == 0) return file;
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
  return std::nullopt;
}

// LibTorch as loaded by this process: …/lib/python3.11/site-packages/torch/lib/libc10.so.
int find_libtorch(dl_phdr_info* info, size_t /*size*/, void* found) {
  const std::string_view name = info->dlpi_name;
  if (!name.ends_with("/torch/lib/libc10.so")) return 0;
  *static_cast<std::string*>(found) = name;
  return 1;
}

// …/bin/torchrun of the Python environment that holds LibTorch.
std::optional<std::string> torchrun_of_libtorch() {
  std::string libtorch;
  ::dl_iterate_phdr(find_libtorch, &libtorch);
  std::error_code error;
  std::filesystem::path folder = std::filesystem::weakly_canonical(libtorch, error);
  for (int i = 0; i < 6; ++i) folder = folder.parent_path();
  const std::string file = folder / "bin" / "torchrun";
  return !libtorch.empty() && ::access(file.c_str(), X_OK) == 0 ? std::optional(file) : std::nullopt;
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-+=./:,@%^").find(c) != std::string_view::npos;
}

}  // namespace

LaunchTools find_launch_tools(const EnvironmentMap& environment) {
  LaunchTools tools;
  std::error_code error;
  tools.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) tools.program = "megalith";
  tools.folder = std::filesystem::current_path(error).string();
  tools.torchrun = find_in_path(environment, "torchrun");
  if (!tools.torchrun) tools.torchrun = torchrun_of_libtorch();
  tools.container_tool = find_in_path(environment, "docker");
  if (!tools.container_tool) tools.container_tool = find_in_path(environment, "podman");
  return tools;
}

std::vector<std::string> training_command(const LaunchPlan& plan, const LaunchTools& tools,
                                          const std::vector<std::string>& arguments) {
  std::vector<std::string> command;
  if (plan.world_size() > 1) {
    if (!tools.torchrun) {
      throw UserError(fmt::format("{} ranks are started by torchrun, which is neither in PATH nor beside LibTorch",
                                  plan.world_size()),
                      "install torch in a Python environment and put its bin/ into PATH, or set GPUS_PER_NODE=1");
    }
    command = {*tools.torchrun, "--no-python", "--nproc-per-node", std::to_string(plan.ranks_per_node)};
    if (plan.num_nodes == 1 && !plan.has_port) {
      command.emplace_back("--standalone");
    } else {
      command.insert(command.end(),
                     {"--nnodes", std::to_string(plan.num_nodes), "--node-rank", std::to_string(plan.node_rank),
                      "--master-addr", plan.master_address, "--master-port", std::to_string(plan.master_port)});
    }
  }
  command.insert(command.end(), {tools.program, "train"});
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::vector<std::string> slurm_command(const LaunchPlan& plan, const LaunchTools& tools,
                                       const std::vector<std::string>& words, bool is_in_allocation) {
  const std::string nodes = std::to_string(plan.num_nodes);
  std::vector<std::string> command = {"srun", "--nodes=" + nodes, "--ntasks=" + nodes, "--ntasks-per-node=1",
                                      "--export=ALL"};
  if (!is_in_allocation) command.emplace_back("--exclusive");
  if (plan.processors_per_task) command.push_back(fmt::format("--cpus-per-task={}", *plan.processors_per_task));
  command.insert(command.end(), {tools.program, "launch", plan.command_name(), "SLURM=1"});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

std::vector<std::string> container_command(const LaunchPlan& plan, const LaunchTools& tools,
                                           const std::vector<std::string>& words,
                                           const std::vector<std::string>& variables) {
  if (plan.image.empty()) throw UserError("CONTAINER=1 needs DOCKER_IMAGE", "name an image that has this program");
  if (!tools.container_tool) {
    throw UserError("CONTAINER=1: neither docker nor podman is in PATH", "install one, or leave CONTAINER=1 out");
  }
  std::vector<std::string> command = {*tools.container_tool,
                                      "run",
                                      "--rm",
                                      "--network",
                                      "host",
                                      "--ipc",
                                      "host",
                                      "--volume",
                                      fmt::format("{0}:{0}", tools.folder),
                                      "--workdir",
                                      tools.folder,
                                      "--env",
                                      "MEGALITH_IN_CONTAINER=1"};
  for (const char* device : {"/dev/dri", "/dev/kfd", "/dev/infiniband"}) {
    if (::access(device, F_OK) == 0) command.insert(command.end(), {"--device", device});
  }
  // By name only: a value, such as a token, would show in the process list.
  for (const std::string& name : variables) command.insert(command.end(), {"--env", name});
  command.insert(command.end(), {plan.image, "megalith", "launch", plan.command_name()});
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

std::string shell_quoted(std::string_view word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string shell_text(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) {
    if (!text.empty()) text += ' ';
    const bool needs_quotes = word.empty() || !std::all_of(word.begin(), word.end(), is_plain);
    if (!needs_quotes) {
      text += word;
      continue;
    }
    text += shell_quoted(word);
  }
  return text;
}

int run_and_wait(const std::vector<std::string>& command, const std::optional<std::string>& output_file) {
  const ProcessResult result =
      run_process({.words = command, .output_file = output_file.value_or(""), .captures = false, .has_input = true});
  if (!result.errors.empty()) fmt::print(stderr, "error: {}\n", visible_text(result.errors));
  return result.exit_code;
}

bool is_standard_output(const std::string& path) {
  struct stat output {
  }, file{};
  if (::fstat(STDOUT_FILENO, &output) != 0 || ::stat(path.c_str(), &file) != 0) return false;
  return output.st_dev == file.st_dev && output.st_ino == file.st_ino;
}

}  // namespace megalith
