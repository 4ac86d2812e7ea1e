// wandb_project: an offline run of Weights & Biases under Megatron-LM's names.
//
//   FOLDER/offline-run-20260131_080120-a1b2c3d4/run-a1b2c3d4.wandb   for 'wandb sync'; see wandb_file.h
//   FOLDER/offline-run-…/files/megalith.yaml                         the configuration, ready to run
//   FOLDER/latest-run                                                a link to the newest
//
// A step is a row of history: TensorBoard's scalars and "samples vs steps". Evaluations and generations of its
// iteration join, so rows are written when the next step comes or the run ends, as in wandb. A killed run lacks its
// last row and its end, and can still be uploaded.
//
// A resumed run has the same id and its own folder, as with wandb's resume: uploading appends. W&B takes the first of
// repeated rows.
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
  // UserError on failure.
  WandbSink(const TrackedRun& run, const LogOptions& options, Logger& log);
  // Without on_end() the run counts as failed.
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
  // Writes the open row and begins this iteration's.
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
  int64_t row_step_ = -1;  // the open row's; -1: none
  JsonItems row_;
  JsonItems summary_;  // last values
  bool has_ended_ = false;
};

}  // namespace megalith
