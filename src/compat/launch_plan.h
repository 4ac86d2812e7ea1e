// Turns a front end's variables into options for `megalith train`, variables for its processes, a log path and a number
// of processes. A pure function: starts and reads nothing.
//
// From lowest priority to highest: the table's defaults, `.env` in the current folder, the environment, words
// KEY=VALUE, --options.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compat/benchmark.h"
#include "compat/variable.h"
#include "config/yaml_document.h"
#include "core/error.h"

namespace megalith {

struct LaunchInputs {
  FrontEnd front_end = FrontEnd::kLlama3;
  EnvironmentMap environment = {};
  std::optional<std::string> env_file = {};            // text of `.env`; nothing if missing
  std::vector<std::string> words = {};                 // after the front end's name
  std::string tree = {};                               // the folder that has examples/, with '/' at its end
  std::string now = {};                                // "2025-06-01_12-00-00", part of a log's path
  int num_processors = 1;                              // of this machine, which bound its ranks without a GPU
  std::function<int()> count_gpus = [] { return 0; };  // of this machine; not called in a dry run
  // `exists`: a file or folder is there. `files_of`: a folder's files, for suggesting the nearest name.
  std::function<bool(const std::string& path)> exists = [](const std::string&) { return false; };
  std::function<std::vector<std::string>(const std::string& folder)> files_of = nullptr;
};

enum class DryRunKind { kNone, kText, kJson };

// An option of the trainer, and the variable it comes from.
struct PlannedOption {
  std::string name, value;
  std::string variable;  // as spelled by the user or the table; empty: set by the script itself
  std::string given;     // the variable's value
};

struct PlannedExport {
  std::string name, value, reason;
  bool is_shown = true;
};

struct LaunchPlan {
  FrontEnd front_end = FrontEnd::kLlama3;
  std::string config;                      // preset or file
  std::vector<PlannedOption> options;      // each name once
  std::vector<PlannedOption> inputs = {};  // weights and rows, not looked for in a dry run
  std::vector<std::string> user_options;
  std::vector<PlannedExport> exports;
  std::vector<std::string> unset = {};  // variables removed from the processes' environment

  int num_gpus = 0;  // of this machine; assumed in a dry run
  int num_nodes = 1, node_rank = 0, ranks_per_node = 1;
  bool has_port = false;  // MASTER_PORT was set
  std::string master_address = "localhost";
  int master_port = 0;
  bool uses_slurm = false, uses_container = false;
  // In a dry run: where a start would go first.
  bool would_use_slurm = false, would_use_container = false;
  std::string image;
  std::optional<int> processors_per_task;

  std::optional<std::string> train_log;
  bool tees = true;
  DryRunKind dry_run = DryRunKind::kNone;
  bool is_tiny = false;
  bool starts = true;  // NO_TRAINING=0

  std::optional<BenchmarkRun> benchmark;  // set if the run is a benchmark of AMD's

  std::vector<std::string> notes;  // what each set variable became, and what was switched off
  std::vector<UserError> errors;   // all that is wrong; left out of the rest of the plan

  // Name for `megalith launch`; a benchmark may run another script's plan.
  std::string command_name() const;
  int world_size() const { return num_nodes * ranks_per_node; }
  const PlannedOption* find(std::string_view name) const;
  // True if the user gave the option itself, which overrides a variable.
  bool is_typed(const std::string& name) const;
  void set(PlannedOption option);  // replaces one of the same name
  void set_fixed();                // what the front end's script always passes
  void drop(std::string_view name);
  // Arguments of `megalith train`; the user's own options come last and override the rest.
  std::vector<std::string> arguments() const;
  // The same with mock data instead of inputs.
  std::vector<std::string> arguments_without_inputs() const;
};

LaunchPlan plan_launch(const LaunchInputs& inputs);

// The same error with options replaced by the variables they come from: "TP=3" for "tensor_model_parallel_size 3".
UserError in_users_words(const UserError& error, const LaunchPlan& plan);

}  // namespace megalith
