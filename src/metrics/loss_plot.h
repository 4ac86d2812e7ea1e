// loss_plot_file: the training loss of every step and the losses of the evaluations, as a picture that is written anew
// after each evaluation and at the end.
#pragma once

#include <filesystem>
#include <string>

#include "metrics/step_record.h"
#include "metrics/svg_plot.h"

namespace megalith {

class Logger;

class LossPlotSink : public MetricsSink {
 public:
  // subtitle  what was trained: "llama 12.6 M, global batch 32 × 256 tokens"
  // A picture that cannot be written costs one warning.
  LossPlotSink(std::filesystem::path path, std::string subtitle, Logger& log);

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_end() override;

 private:
  void save();

  std::filesystem::path path_;
  PlotSettings settings_;
  Logger& log_;
  bool has_warned_ = false;
  PlotSeries train_;
  std::vector<PlotSeries> validation_;  // one a data set
};

}  // namespace megalith
