// A run's Weights & Biases and MLflow folders: places, content, and the run to resume.
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

// The requested sinks. Run ids are kept in tracking.json beside the checkpoints, so a resumed run is the same to W&B
// and MLflow.
std::vector<std::unique_ptr<MetricsSink>> make_tracking_sinks(const Resolved& resolved, const SinkSettings& settings,
                                                              Logger& log);

}  // namespace megalith
