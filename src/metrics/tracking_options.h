// Offline records for Weights & Biases and MLflow; no server is contacted.
#pragma once

#include <optional>
#include <string>

namespace megalith {

class OptionVisitor;

struct TrackingOptions {
  std::optional<std::string> wandb_project;
  std::optional<std::string> wandb_exp_name;
  std::optional<std::string> wandb_entity;
  std::optional<std::string> wandb_save_dir;
  std::optional<bool> disable_wandb;

  std::optional<std::string> mlflow_experiment_name;
  std::optional<std::string> mlflow_run_name;
  std::optional<std::string> mlflow_dir;
  std::optional<bool> disable_mlflow;

  void visit(OptionVisitor& visitor);

  // Megatron-LM enables it by the project, Primus by disable_wandb; likewise MLflow.
  bool asks_for_wandb() const { return wandb_project.has_value(); }
  bool asks_for_mlflow() const { return mlflow_experiment_name || mlflow_run_name || mlflow_dir; }
  bool writes_wandb() const { return disable_wandb ? !*disable_wandb : asks_for_wandb(); }
  bool writes_mlflow() const { return disable_mlflow ? !*disable_mlflow : asks_for_mlflow(); }
};

}  // namespace megalith
