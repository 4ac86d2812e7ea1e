// A table at a run's end: result, duration, outputs, next commands.
//
//   done        340 of 340 steps in 4 m 31 s
//   loss        1.4212 in training (mean of the last 20 steps)
//               1.5312 on validation (least 1.5012 after step 300)
//   speed       5.12 k tokens/s, 800 ms a step, 0.34 TFLOP/s; 1.39 M tokens
//   memory      tensors took 1.21 GiB at most
//   checkpoint  build/demo/checkpoint
//   next        megalith generate --load build/demo/checkpoint --prompt "…"
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "metrics/averages.h"
#include "metrics/console.h"
#include "metrics/drawn_file.h"
#include "metrics/step_record.h"
#include "train/config.h"

namespace megalith {

class RunEnd : public MetricsSink {
 public:
  // resolved outlives it. Add it after the sinks that write files.
  //   era_texts  how the ranks changed (fault_tolerance)
  RunEnd(const Resolved& resolved, LineWriter write, SecondsClock clock = steady_seconds,
         std::vector<std::string> era_texts = {});

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  // Writes the table, unless neither a step nor an evaluation was done.
  void on_end() override;

 private:
  struct Evaluated {
    double last = 0, least = 0;
    int64_t least_after = 0, count = 0;
  };

  std::vector<std::string> losses() const;
  std::string time() const;

  const Resolved& resolved_;
  LineWriter write_;
  SecondsClock clock_;
  std::vector<std::string> era_texts_;
  double begun_at_s_;
  RunAverages averages_;
  StepRecord last_;
  int64_t num_steps_ = 0, num_skipped_ = 0, num_tokens_ = 0, peak_bytes_ = 0;
  std::deque<double> latest_losses_;
  std::vector<std::pair<std::string, Evaluated>> evaluated_;  // by set, in order of first evaluation
};

// Suggested commands with this run's options; empty if nothing was saved.
std::vector<std::string> next_commands(const Resolved& resolved);

}  // namespace megalith
