// loss_plot_file: training and evaluation losses as a picture, redrawn after evaluations (at most every two seconds)
// and at the end. Long runs draw the lowest and highest of every few steps, and say so.
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
  // subtitle  what is trained: "llama 12.6 M, global batch 32 × 256 tokens"
  // UserError when the folder cannot be created; a picture that cannot be written costs one warning.
  LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log, SecondsClock clock = steady_seconds);

  // For a run resumed after `iteration`: keeps the curves of the existing picture up to there. A missing or foreign
  // picture is ignored.
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
  std::vector<LongSeries> validation_;  // one per data set
};

}  // namespace megalith
