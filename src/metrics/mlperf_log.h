// mlperf_log_file: the lines ":::MLLOG {…}" by which MLCommons judges a training benchmark.
//
//   :::MLLOG {"namespace": "", "time_ms": 1767225600000, "event_type": "POINT_IN_TIME", "key": "seed", "value": 1234,
//   "metadata": {…}}
//
// init_start, the run's facts, init_stop, run_start; blocks of training between evaluations, of which the first set's
// loss is eval_accuracy; run_stop with status success at the first evaluation at or below the target, else aborted at
// the end.
// Keys: mlcommons/logging, mlperf_logging/mllog/constants.py; rules: its compliance_checker.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics/append_file.h"
#include "metrics/step_record.h"

namespace megalith {

struct MlperfRun {
  std::vector<std::pair<std::string, std::string>> facts;  // key, value as JSON
  std::optional<double> target;                            // loss of an evaluation; unset: never reached
  int64_t log_interval = 1;
};

class MlperfLog : public MetricsSink {
 public:
  using Clock = std::function<int64_t()>;  // milliseconds since 1970
  MlperfLog(std::string path, MlperfRun run, Logger& log, Clock clock);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_end() override;

 private:
  void write(std::string_view type, std::string_view key, const std::string& value, const std::string& metadata,
             int64_t time_ms);
  void stop(std::string_view status);

  AppendFile file_;
  MlperfRun run_;
  Clock clock_;
  int64_t step_ms_ = 0, samples_ = 0;  // when the last step ended, and its consumed samples
  bool in_block_ = false, is_stopped_ = false;
  std::string judged_set_;  // the first that was evaluated
};

// "llama31_8b" -> 3.3; unset for benchmarks without one.
std::optional<double> mlperf_target(std::string_view benchmark);

}  // namespace megalith
