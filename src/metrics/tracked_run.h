// What Weights & Biases and MLflow are told of a run besides its numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

struct TrackedOption {
  std::string name;
  std::string text;      // "0.0001", "true", "llama"
  bool is_json = false;  // a number, true or false: `text` is JSON as it stands
  bool is_default = false;
};

struct TrackedRun {
  std::filesystem::path folder;  // "wandb" or "mlruns": made where it is missing
  std::string group;             // W&B's project, MLflow's experiment
  std::string name;              // empty: theirs to choose
  std::string entity;            // W&B's team or user; may be empty
  std::string id;                // of the run that goes on; empty: a new one
  int64_t resumed_after = 0;     // the iteration that it goes on after

  std::vector<TrackedOption> options;
  std::string configuration;         // YAML that runs again
  std::vector<std::string> command;  // the words of the command line
  std::string commit;                // that the program was built from
  std::string model;                 // "llama, 12.6 M parameters"
};

// The name of who runs the program, "unknown" where nothing says.
std::string tracked_user();

int64_t unix_time_ms();

// `count` random characters of those given.
std::string random_text(size_t count, const char* characters);

}  // namespace megalith
