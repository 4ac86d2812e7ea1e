// mlflow_dir: the run in MLflow's file store, for 'mlflow ui'; runs share it.
//
//   STORE/EXPERIMENT/meta.yaml                   an experiment: its number is its folder's name
//   STORE/EXPERIMENT/RUN/meta.yaml               a run: 32 hexadecimal digits, name, state, times
//   STORE/EXPERIMENT/RUN/metrics/lm loss         lines "milliseconds value iteration"
//   STORE/EXPERIMENT/RUN/params/lr, tags/…       one value per file
//   STORE/EXPERIMENT/RUN/artifacts/config.yaml   the configuration, ready to run
//   STORE/EXPERIMENT/RUN/artifacts/samples/…     generations
//
// Metrics have TensorBoard's tags, except times, which have Primus's names (perf/iteration_time_ms, …), and characters
// MLflow refuses. Numbers are on disk after their step. A resumed run is the same run, without the lines of steps to be
// repeated.
// Source: mlflow/store/tracking/file_store.py (3.17; extras for older readers as in 2.22).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "metrics/append_file.h"
#include "metrics/log_options.h"
#include "metrics/step_record.h"
#include "metrics/tagged_scalars.h"
#include "metrics/tracked_run.h"

namespace megalith {

class Logger;

class MlflowSink : public MetricsSink {
 public:
  // Creates store, experiment and run as needed. A run to resume that is missing starts afresh, with a warning.
  // UserError on failure.
  MlflowSink(const TrackedRun& run, const LogOptions& options, Logger& log);
  // Without on_end() the run counts as failed.
  ~MlflowSink() override;

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_end() override;

  const std::string& id() const { return id_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void write_facts(const TrackedRun& run);
  void write_value(const std::string& name, const std::string& value);  // name: "params/lr"
  void set_state(int status, bool has_ended);
  void add(int64_t iteration, const Scalars& scalars);
  AppendFile* file_of(const std::string& metric);
  void warn_once(const std::string& what, const std::string& message);

  LogOptions options_;
  Logger& log_;
  std::string id_;
  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<AppendFile>> files_;  // by metric; null: not writable
  int64_t iteration_ = 0, train_iters_ = 0;                   // the last step's
  bool has_warned_ = false, has_ended_ = false;
};

// Letters, digits, blanks and _-.:/ stay, others become '_'.
std::string mlflow_name(const std::string& tag);

}  // namespace megalith
