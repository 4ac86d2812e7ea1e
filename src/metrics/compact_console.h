// log_format compact: a line per step, at most kColumns wide.
//
//   step  20/340  loss 2.8312  grad 0.843  lr 1.00e-03  12.4 k tok/s  MFU 41.2 %  mem 38.2 GiB  left 12m30s
//   eval  20/340  validation loss 2.9120  perplexity 18.39
//
// On a terminal labels are dim, the loss bold, problems red, unless NO_COLOR is set.
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
  bool shows_throughput = true;  // log_throughput: tokens/s, MFU, memory
  bool has_colour = false;
  SecondsClock clock = steady_seconds;
  int64_t train_samples = 0;  // of the whole run, for the time left
};

// A terminal with colours, and NO_COLOR unset (https://no-color.org).
bool takes_colour(int descriptor);

// "45s", "12m30s", "3h05m", "2d04h".
std::string short_duration(double seconds);

class CompactConsole : public MetricsSink {
 public:
  static constexpr size_t kColumns = 110;

  CompactConsole(CompactSettings settings, LineWriter write);

  // Every log_interval iterations and for the last. Losses, times and rates are means over the interval as in
  // ConsoleSink; gradient norm and learning rate the last step's. Overlong lines lose their least important parts.
  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  // Indented: no line looks like the run's.
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;

 private:
  CompactSettings settings_;
  LineWriter write_;
  StepInterval interval_;
  TimeLeft time_left_;
  int64_t train_iters_ = 0;  // the last step's
};

}  // namespace megalith
