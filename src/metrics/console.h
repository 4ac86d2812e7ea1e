// log_format megatron: the iteration line of Primus v0.1, Megatron's validation block, and the closing summary. Their
// forms are fixed by the tools that read them (Megatron's and Primus's reports, CVS, MAD).
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

// Takes whole lines with their line break.
using LineWriter = std::function<void(std::string_view)>;

// Writes to standard output, one write a text, after taking the logger's status line off the terminal.
// on_closed  called for each text that finds no reader any more: of a pipe, or a terminal that is gone. SIGPIPE is
//            ignored where this is of use
LineWriter standard_output(Logger& log, std::function<void()> on_closed = {});

class ConsoleSink : public MetricsSink {
 public:
  ConsoleSink(const LogOptions& options, LineWriter write);

  // A line every log_interval iterations, and for the last one. With an interval above one: losses are means over the
  // steps of the interval that were not skipped, times and rates means over all of them, skipped and NaN steps counted.
  //
  //  iteration        3/      50 | consumed samples:           96 | elapsed time per iteration (ms): 210.3/211.0 |
  //  mem usages: 0.4213 | throughput per GPU (TFLOP/s/GPU): 0.9/0.9 | tokens per GPU (tokens/s/GPU): 9.7/9.7 | …
  //
  // (One physical line.) The learning rate is the next step's where the record has it, as Megatron prints it.
  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  // Every line of the text is indented, so that none is taken for a line of the run's own.
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  // The summary: `throughput per GPU: X`, `elapsed time per iteration: X`, `tokens/GPU/s: X`, `mem usages: X`; nothing
  // when no step was done.
  void on_end() override;

  RunSummary summary() const { return run_.summary(); }

 private:
  std::string line(const StepRecord& record);

  LogOptions options_;
  LineWriter write_;
  LineAverages averages_;
  RunAverages run_;
  StepInterval interval_;  // since the last line
};

}  // namespace megalith
