// A run in the folders of Weights & Biases and MLflow: where they lie, what they are told, and which run there is meant
// when one goes on.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "core/log.h"
#include "metrics/step_record.h"
#include "train/config.h"
#include "train/sinks.h"

namespace megalith {

// The folder of offline runs: "wandb" in wandb_save_dir, else beside the checkpoints, else in the current folder.
std::filesystem::path wandb_folder(const Config& config);
// MLflow's file store.
std::filesystem::path mlflow_folder(const Config& config);

// The sinks that the options ask for. The numbers of their runs are kept in the folder of checkpoints, tracking.json:
// a run that goes on from there is the same run to W&B and MLflow.
std::vector<std::unique_ptr<MetricsSink>> make_tracking_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                              Logger& log);

}  // namespace megalith
