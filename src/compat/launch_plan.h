// What a front end's variables mean: options for `megalith train`, variables for its processes, where its log goes, how
// many processes there are. A pure function of what it is given: it starts nothing and looks at nothing.
//
// From low to high: the table's defaults, `.env` in the current folder, the environment, words KEY=VALUE, --options.
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
  std::optional<std::string> env_file = {};            // the text of `.env`; nothing when there is none
  std::vector<std::string> words = {};                 // behind the front end's name
  std::string tree = {};                               // the folder that has examples/, with '/' at its end
  std::string now = {};                                // "2025-06-01_12-00-00", part of a log's path
  int num_processors = 1;                              // of this machine, which bound its ranks where it has no GPU
  std::function<int()> count_gpus = [] { return 0; };  // of this machine; not called in a dry run
  // Whether there is a file or folder, and the files of a folder, for the nearest name.
  std::function<bool(const std::string& path)> exists = [](const std::string&) { return false; };
  std::function<std::vector<std::string>(const std::string& folder)> files_of = nullptr;
};

enum class DryRunKind { kNone, kText, kJson };

// An option of the trainer, and the variable that it is from.
struct PlannedOption {
  std::string name, value;
  std::string variable;  // as the user spelled it, or the table does; empty: the script's own
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
  std::vector<PlannedOption> inputs = {};  // weights and rows, which a dry run does not look for
  std::vector<std::string> user_options;
  std::vector<PlannedExport> exports;
  std::vector<std::string> unset = {};  // variables that the processes must not have

  int num_gpus = 0;  // of this machine; those that a dry run takes to be there
  int num_nodes = 1, node_rank = 0, ranks_per_node = 1;
  bool has_port = false;  // MASTER_PORT was set
  std::string master_address = "localhost";
  int master_port = 0;
  bool uses_slurm = false, uses_container = false;
  std::string image;
  std::optional<int> processors_per_task;

  std::optional<std::string> train_log;
  bool tees = true;
  DryRunKind dry_run = DryRunKind::kNone;
  bool is_tiny = false;
  bool starts = true;  // NO_TRAINING=0

  std::optional<BenchmarkRun> benchmark;  // what is measured, when the run is a benchmark of AMD's

  std::vector<std::string> notes;  // what each set variable became, and what was switched off
  std::vector<UserError> errors;   // all that is wrong; the rest of the plan leaves it out

  // What `megalith launch` calls it; a benchmark may run another script's plan.
  std::string command_name() const;
  int world_size() const { return num_nodes * ranks_per_node; }
  const PlannedOption* find(std::string_view name) const;
  // Whether the user gave the option itself, which then wins over a variable.
  bool is_typed(const std::string& name) const;
  void set(PlannedOption option);  // replaces one of the same name
  void set_fixed();                // what the front end's script always says
  void drop(std::string_view name);
  // Arguments of `megalith train`; the user's own options come last, and so win.
  std::vector<std::string> arguments() const;
  // The same with made-up tokens in the place of inputs.
  std::vector<std::string> arguments_without_inputs() const;
};

LaunchPlan plan_launch(const LaunchInputs& inputs);

// The same error with options in the words of the variables that they are from: "TP=3" for
// "tensor_model_parallel_size 3".
UserError in_users_words(const UserError& error, const LaunchPlan& plan);

}  // namespace megalith
