// A run's facts for Weights & Biases and MLflow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

struct TrackedOption {
  std::string name;
  std::string text;      // "0.0001", "true", "llama"
  bool is_json = false;  // number or boolean
  bool is_default = false;
};

struct TrackedRun {
  std::filesystem::path folder;  // "wandb" or "mlruns"
  std::string group;             // W&B's project, MLflow's experiment
  std::string name;              // empty: their choice
  std::string entity;            // W&B's team or user; may be empty
  std::string id;                // to resume; empty: a new run
  int64_t resumed_after = 0;     // iteration

  std::vector<TrackedOption> options;
  std::string configuration;  // YAML
  std::vector<std::string> command;
  std::string commit;  // this build's
  std::string model;   // "llama, 12.6 M parameters"
};

// "unknown" if the system knows none.
std::string tracked_user();

int64_t unix_time_ms();

// `count` random ones.
std::string random_text(size_t count, const char* characters);

}  // namespace megalith
