// log_style pictures: the line of a step in benchmarks of models of pictures, for tools that read it.
//
//   step: 12/100 | step_loss: 0.43210 | step_time_total: 1.234 | fps: 64.83 | fps_gpu: 8.10 | tflops/s: 522.7 | …
//
// (One physical line.) It stands for every log_interval steps: the mean loss since the last line, seconds of a step,
// pictures a second of all devices and of one, TFLOP a second of one, and memory in GiB.
#pragma once

#include "metrics/console.h"
#include "metrics/interval.h"

namespace megalith {

class PicturesConsole : public MetricsSink {
 public:
  PicturesConsole(int64_t log_interval, LineWriter write);

  void on_step(const StepRecord& record) override;

 private:
  int64_t log_interval_;
  LineWriter write_;
  StepInterval interval_;  // since the last line
};

}  // namespace megalith
