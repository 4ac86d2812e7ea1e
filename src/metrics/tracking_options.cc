#include "metrics/tracking_options.h"

#include "config/option.h"

namespace megalith {

void TrackingOptions::visit(OptionVisitor& v) {
  v.group("Weights & Biases", {.changes_numbers = false});
  v.field("wandb_project", wandb_project,
          "Write the run as an offline run of this project of Weights & Biases, which 'wandb sync' uploads. Nothing is "
          "contacted while it trains.");
  v.field("wandb_exp_name", wandb_exp_name,
          "The run's name there. Default: the experiment's exp_name, else the name of output_dir, else one that the "
          "server makes up.");
  v.field("wandb_entity", wandb_entity, "The team or user that the project belongs to. Default: who uploads.");
  v.field("wandb_save_dir", wandb_save_dir,
          "The folder in which the folder 'wandb' of the run lies. Default: output_dir, else save, else the current "
          "folder.");
  v.field("disable_wandb", disable_wandb,
          "true: write nothing for Weights & Biases, whatever wandb_project says. false: write it, without a project's "
          "name as well. Default: wandb_project decides.");

  v.group("MLflow", {.changes_numbers = false});
  v.field("mlflow_experiment_name", mlflow_experiment_name,
          "Write the run into MLflow's file store, as one of this experiment. Nothing is contacted. Default of the "
          "name: Default.");
  v.field("mlflow_run_name", mlflow_run_name,
          "Write the run into MLflow's file store under this name. Default of the name: the experiment's exp_name, "
          "else the name of output_dir, else the run's number.");
  v.field("mlflow_dir", mlflow_dir,
          "The folder of MLflow's file store, which several runs may share. Default: mlruns in output_dir, else in "
          "the current folder.");
  v.field("disable_mlflow", disable_mlflow,
          "true: write nothing for MLflow, whatever its other options say. false: write it, without a name as well. "
          "Default: written where mlflow_experiment_name, mlflow_run_name or mlflow_dir is set.");
}

}  // namespace megalith
