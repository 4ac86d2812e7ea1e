// loss_plot_file: losses as a picture, redrawn after evaluations (at most every two seconds) and at the end. Long runs
// draw the lowest and highest of every few steps, and say so.
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
  //   subtitle  "llama 12.6 M, global batch 32 × 256 tokens"
  // UserError if the folder cannot be created; a failed write costs one warning.
  LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log, SecondsClock clock = steady_seconds);

  // For a resumed run: keeps the existing picture's curves up to `iteration`. Ignores missing and foreign pictures.
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
  std::vector<LongSeries> validation_;  // per data set
};

}  // namespace megalith
