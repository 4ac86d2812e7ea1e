// metrics_file: a JSON object per line, for each optimizer step and evaluation.
//
//   {"kind":"step","iteration":3,"train_iters":50,"lm_loss":9.81,"grad_norm":4.2,"learning_rate":3e-05,
//    "elapsed_ms":210.3,"tokens_per_s_per_device":9740.1,"tflops_per_device":0.91,…,
//    "time":"2026-01-31T08:01:28.417Z","run_id":"20260131-080120-3fa9"}
//   {"kind":"evaluation","iteration":3,"set":"validation","consumed_samples":96,"evaluation_loss":9.7,
//    "evaluation_losses":{"lm_loss":9.7},"time":…,"run_id":…}
//   {"kind":"event","event":"loss_spike","iteration":200,"text":…,"samples":[6368,6400],"time":…,"run_id":…}
//
// Non-finite numbers and uncomputed norms are null; blanks in losses' names become '_'. Evaluations' losses have other
// names, so readers of lm_loss get only steps.
//
// Opening drops a killed run's unfinished last line. Steps that a resumed run repeats stay; an iteration's last line
// counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "metrics/append_file.h"
#include "metrics/step_record.h"

namespace megalith {

class Logger;

class JsonlSink : public MetricsSink {
 public:
  // Creates file and folder. UserError on failure; later, a line that cannot be written is dropped whole, with one
  // warning.
  //   run_id  of this start; empty: a new one
  JsonlSink(std::filesystem::path path, Logger& log, std::string run_id = "");

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_event(const EventRecord& record) override;

 private:
  AppendFile file_;
  std::string run_id_;
};

// Without newline, stamped with the current time.
std::string json_line(const StepRecord& record, const std::string& run_id = "");
std::string json_line(const ValidationRecord& record, const std::string& run_id = "");
std::string json_line(const EventRecord& record, const std::string& run_id = "");

}  // namespace megalith
