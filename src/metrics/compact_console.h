// log_format compact: what a person reads of a run on standard output, a line a step of at most kColumns columns.
//
//   step  20/340  loss 2.8312  grad 0.843  lr 1.00e-03  12.4 k tok/s  MFU 41.2 %  mem 38.2 GiB  left 12m30s
//   eval  20/340  validation loss 2.9120  perplexity 18.39
//
// On a terminal the words are dim, the loss is bold, and what went wrong is red; NO_COLOR switches that off.
#pragma once

#include <cstddef>
#include <string>

#include "metrics/console.h"
#include "metrics/interval.h"
#include "metrics/log_options.h"
#include "metrics/step_record.h"
#include "metrics/time_left.h"

namespace megalith {

struct CompactSettings {
  int64_t log_interval = 1;
  bool shows_throughput = true;  // log_throughput: tokens/s, share of the device's peak, memory
  bool has_colour = false;
  SecondsClock clock = steady_seconds;
};

// Whether colours may be written to this descriptor: it is a terminal that has them, and NO_COLOR is not set
// (https://no-color.org).
bool takes_colour(int descriptor);

// The two largest units without blanks: "45s", "12m30s", "3h05m", "2d04h".
std::string short_duration(double seconds);

class CompactConsole : public MetricsSink {
 public:
  static constexpr size_t kColumns = 110;

  CompactConsole(CompactSettings settings, LineWriter write);

  // A line every log_interval iterations, and for the last one. Losses, times and rates are means over the interval as
  // in ConsoleSink; the gradient norm and the learning rate, which is the one that was used, are the last step's. Where
  // the line would become too long, what matters least is left out: further losses first. --metrics_file has it all.
  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  // Every line of the text is indented, so that none is taken for a line of the run's own.
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;

 private:
  CompactSettings settings_;
  LineWriter write_;
  StepInterval interval_;
  TimeLeft time_left_;
  int64_t train_iters_ = 0;  // of the last step
};

}  // namespace megalith
