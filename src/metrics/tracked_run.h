// A run's facts beyond its numbers, for Weights & Biases and MLflow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

struct TrackedOption {
  std::string name;
  std::string text;      // "0.0001", "true", "llama"
  bool is_json = false;  // a number or boolean: `text` is JSON
  bool is_default = false;
};

struct TrackedRun {
  std::filesystem::path folder;  // "wandb" or "mlruns", created if missing
  std::string group;             // W&B's project, MLflow's experiment
  std::string name;              // empty: theirs to choose
  std::string entity;            // W&B's team or user; may be empty
  std::string id;                // of the run to resume; empty: a new one
  int64_t resumed_after = 0;     // iteration

  std::vector<TrackedOption> options;
  std::string configuration;         // YAML, ready to run
  std::vector<std::string> command;  // the command line
  std::string commit;                // of this build
  std::string model;                 // "llama, 12.6 M parameters"
};

// The user's name, or "unknown".
std::string tracked_user();

int64_t unix_time_ms();

// `count` random ones of these characters.
std::string random_text(size_t count, const char* characters);

}  // namespace megalith
