// metrics_file: one JSON object a line, per optimizer step and per evaluation.
//
//   {"kind":"step","iteration":3,"train_iters":50,"lm_loss":9.81,"grad_norm":4.2,"learning_rate":3e-05,
//    "elapsed_ms":210.3,"tokens_per_s_per_device":9740.1,"tflops_per_device":0.91,…,
//    "time":"2026-01-31T08:01:28.417Z","run_id":"20260131-080120-3fa9"}
//   {"kind":"evaluation","iteration":3,"set":"validation","consumed_samples":96,"evaluation_loss":9.7,
//    "evaluation_losses":{"lm_loss":9.7},"time":…,"run_id":…}
//   {"kind":"event","event":"loss_spike","iteration":200,"text":…,"samples":[6368,6400],"time":…,"run_id":…}
//
// Non-finite numbers and uncomputed norms are null. Blanks in losses' names become '_'. An evaluation's losses have
// names of their own, so that a reader of lm_loss gets only steps.
//
// Opening drops an unfinished last line of a killed run. Lines of steps that a resumed run repeats stay; the last line
// of an iteration counts.
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
  // Creates the file and its folder. UserError on failure; later, a line that cannot be written (disk full) is dropped
  // whole, with one warning.
  // run_id  of this start of the program; empty: a new one
  JsonlSink(std::filesystem::path path, Logger& log, std::string run_id = "");

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_event(const EventRecord& record) override;

 private:
  AppendFile file_;
  std::string run_id_;
};

// A line without its newline, stamped with the current time.
std::string json_line(const StepRecord& record, const std::string& run_id = "");
std::string json_line(const ValidationRecord& record, const std::string& run_id = "");
std::string json_line(const EventRecord& record, const std::string& run_id = "");

}  // namespace megalith
