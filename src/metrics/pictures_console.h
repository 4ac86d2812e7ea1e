// log_style pictures: the step line of image-model benchmarks.
//
//   step: 12/100 | step_loss: 0.43210 | step_time_total: 1.234 | fps: 64.83 | fps_gpu: 8.10 | tflops/s: 522.7 | …
//
// (One physical line), every log_interval steps: mean loss since the last line, seconds per step, images/s in total and
// per device, TFLOP/s per device, memory in GiB.
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
  StepInterval interval_;
};

}  // namespace megalith
