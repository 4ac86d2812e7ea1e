// log_format json: a JSON object per line on standard output.
//
//   a step        as in --metrics_file (metrics/jsonl.h), every log_interval iterations and at the end
//   an evaluation likewise, per set
//   a text        {"kind":"text","iteration":100,"prompt":"…","continuation":"…"}
//   the end       {"kind":"summary","num_steps":97,"elapsed_ms":210.3,…}: RunAverages' means
#pragma once

#include "metrics/averages.h"
#include "metrics/console.h"
#include "metrics/step_record.h"

namespace megalith {

class JsonConsole : public MetricsSink {
 public:
  JsonConsole(int64_t log_interval, LineWriter write) : log_interval_(log_interval), write_(std::move(write)) {}

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  void on_event(const EventRecord& record) override;
  void on_end() override;

 private:
  int64_t log_interval_;
  LineWriter write_;
  RunAverages run_;
};

}  // namespace megalith
