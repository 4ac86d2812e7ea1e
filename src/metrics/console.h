// log_format megatron: Primus v0.1's iteration line, Megatron's validation block and closing summary. Fixed, because
// tools parse them (Megatron's and Primus's reports, CVS, MAD).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "metrics/averages.h"
#include "metrics/interval.h"
#include "metrics/log_options.h"
#include "metrics/step_record.h"

namespace megalith {

class Logger;

// Receives whole lines, with newlines.
using LineWriter = std::function<void(std::string_view)>;

// Writes each text to standard output at once, after clearing the status line.
//   on_closed  called per text after the reader is gone; the caller ignores SIGPIPE
LineWriter standard_output(Logger& log, std::function<void()> on_closed = {});

class ConsoleSink : public MetricsSink {
 public:
  ConsoleSink(const LogOptions& options, LineWriter write);

  // Every log_interval iterations and for the last. Losses are means over the interval's steps that were not skipped,
  // times and rates over all.
  //
  //  iteration        3/      50 | consumed samples:           96 | elapsed time per iteration (ms): 210.3/211.0 |
  //  mem usages: 0.4213 | throughput per GPU (TFLOP/s/GPU): 0.9/0.9 | tokens per GPU (tokens/s/GPU): 9.7/9.7 | …
  //
  // (One physical line.) The learning rate is the next step's if known, as in Megatron.
  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  // Indented: no line looks like the run's.
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  // `throughput per GPU: X`, `elapsed time per iteration: X`, `tokens/GPU/s: X`, `mem usages: X`; nothing without
  // steps.
  void on_end() override;

  RunSummary summary() const { return run_.summary(); }

 private:
  std::string line(const StepRecord& record);

  LogOptions options_;
  LineWriter write_;
  LineAverages averages_;
  RunAverages run_;
  StepInterval interval_;
};

}  // namespace megalith
