// A run's folders for Weights & Biases and MLflow: where they are, their content, and the run to resume.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "core/log.h"
#include "metrics/step_record.h"
#include "train/config.h"
#include "train/sinks.h"

namespace megalith {

// "wandb" in wandb_save_dir, else next to the checkpoints, else in the current folder.
std::filesystem::path wandb_folder(const Config& config);
std::filesystem::path mlflow_folder(const Config& config);

// The requested sinks. Their runs' ids are kept in tracking.json in the folder of checkpoints, so that a resumed run is
// the same to W&B and MLflow.
std::vector<std::unique_ptr<MetricsSink>> make_tracking_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                              Logger& log);

}  // namespace megalith
