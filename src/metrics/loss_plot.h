// loss_plot_file: the training loss and the losses of the evaluations, as a picture that is written anew after
// evaluations (not more often than every two seconds) and at the end. For a long run it draws the lowest and the
// highest of every few steps, and says so.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "metrics/drawn_file.h"
#include "metrics/long_series.h"
#include "metrics/step_record.h"
#include "metrics/svg_plot.h"

namespace megalith {

class Logger;

class LossPlotSink : public MetricsSink {
 public:
  // subtitle  what was trained: "llama 12.6 M, global batch 32 × 256 tokens"
  // A picture that cannot be written costs one warning. UserError when its folder cannot be made.
  LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log, SecondsClock clock = steady_seconds);

  // For a run that goes on after so many iterations: draws also what the picture in the file shows up to there. A
  // picture that is missing, or is not ours, costs nothing but its curves.
  void resume(int64_t iteration);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_end() override;

  std::string render() const;

 private:
  LongSeries& validation_series(const std::string& set);

  std::filesystem::path path_;
  Logger& log_;
  DrawnFile file_;
  PlotSettings settings_;
  LongSeries train_;
  std::vector<LongSeries> validation_;  // one a data set
};

}  // namespace megalith
