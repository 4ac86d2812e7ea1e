// log_style torchtitan: torchtitan's lines (v0.2), beside log_format's.
//
//   [titan] 2026-01-31 12:00:00,250 - root - INFO - step:  1  loss: 12.25104  grad_norm:  4.0012
//   memory:  5.25GiB(6.56%)
//     tps: 6,310  tflops: 388.20  mfu: 39.25%
//
// (One physical line), for step 1 and every log_interval steps. loss and grad_norm are the step's; memory is the
// process's peak since the last line; tps and tflops are per device since then, in torchtitan's count: tokens over all
// ranks' time, attention to every key. mfu is N/A for unknown devices. Evaluations have no rates.
#pragma once

#include <functional>
#include <string>

#include "metrics/console.h"
#include "metrics/interval.h"

namespace megalith {

// Local time, "2026-01-31 12:00:00,250".
using WallClock = std::function<std::string()>;
std::string wall_clock_text();

class TorchtitanConsole : public MetricsSink {
 public:
  TorchtitanConsole(int64_t log_interval, LineWriter write, WallClock clock = wall_clock_text);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_end() override;

 private:
  void print(const std::string& message);

  int64_t log_interval_;
  LineWriter write_;
  WallClock clock_;
  bool has_begun_ = false;
  StepInterval interval_;
  int64_t most_reserved_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace megalith
