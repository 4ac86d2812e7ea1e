// wandb_project: the run as an offline run of Weights & Biases, under Megatron-LM's names.
//
//   FOLDER/offline-run-20260131_080120-a1b2c3d4/run-a1b2c3d4.wandb   what 'wandb sync' uploads; see wandb_file.h
//   FOLDER/offline-run-…/files/megalith.yaml                         the configuration, to run it again
//   FOLDER/latest-run                                                a link to the newest
//
// A step is one row of history: what TensorBoard gets, and "samples vs steps". Evaluations and generations of the same
// iteration join the row, so it is written when the next step comes or the run ends, as wandb itself does. What was
// written stays whatever happens: a run that was killed lacks its last row and its end, and can be uploaded.
//
// A run that goes on has the same id and a folder of its own, as with wandb's resume: the upload appends its rows.
// Rows of steps that are done again after a kill repeat those before, and W&B takes the first of a step.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "metrics/append_file.h"
#include "metrics/log_options.h"
#include "metrics/step_record.h"
#include "metrics/tracked_run.h"
#include "metrics/wandb_file.h"

namespace megalith {

class Logger;

class WandbSink : public MetricsSink {
 public:
  // Makes the folder and begins the run. UserError when that fails.
  WandbSink(const TrackedRun& run, const LogOptions& options, Logger& log);
  // Without on_end() before it the run is one that failed.
  ~WandbSink() override;

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_end() override;

  const std::string& id() const { return id_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void begin(const TrackedRun& run);
  void write(const std::string& record, const std::string& what);
  void set(const std::string& name, std::string json);
  // Begins the row of the iteration, and writes the one before it.
  void open_row(int64_t iteration);
  void write_row();
  void write_summary();
  void end(int exit_code);
  int64_t runtime_s() const;

  LogOptions options_;
  Logger& log_;
  std::string id_;
  std::filesystem::path folder_;
  std::unique_ptr<AppendFile> file_;
  int64_t start_time_ms_ = 0, num_records_ = 0, num_rows_ = 0;
  int64_t row_step_ = -1;  // of the row that is open; -1: none is
  JsonItems row_;
  JsonItems summary_;  // the last value under each name
  bool has_ended_ = false;
};

}  // namespace megalith
