// page_file: a web page on a run. Key numbers, loss, learning rate, gradient norm, throughput, memory, evaluations,
// texts and configuration, with values in tooltips; light or dark. One self-contained file that reloads itself during
// the run.
//
// A resumed run continues the file's page. Page and memory are bounded: long runs draw lowest, highest and mean of
// every few steps, and say so.
#pragma once

#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/time.h"
#include "metrics/averages.h"
#include "metrics/drawn_file.h"
#include "metrics/expert_load.h"
#include "metrics/long_series.h"
#include "metrics/step_record.h"
#include "metrics/svg_plot.h"
#include "metrics/time_left.h"

namespace megalith {

class Logger;

struct RunPageSettings {
  std::filesystem::path path;
  std::string title;          // "llama, 12.6 M parameters"
  std::string subtitle;       // "global batch 32 × 256 tokens, bf16"
  std::string configuration;  // YAML; may be empty
  // A resumed run keeps the existing page's curves up to this iteration.
  int64_t resumed_after = 0;
  int64_t train_samples = 0;  // of the whole run, for the time left
  // Least seconds between pages.
  double evaluation_every_s = 2, step_every_s = 10;
  SecondsClock clock = steady_seconds;
};

class RunPageSink : public MetricsSink {
 public:
  // Creates the folder and an empty page. UserError on failure; later ones cost one warning.
  RunPageSink(RunPageSettings settings, Logger& log);
  ~RunPageSink() override;

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  void on_event(const EventRecord& record) override;
  void on_end() override;

  std::string render() const;

 private:
  // A chart's plots are the same curves over other axes, which buttons choose.
  struct Plot {
    PlotSettings settings;
    std::vector<const LongSeries*> series;
    std::string axes = {};     // "tokens", "log", "tokens log"; empty: iterations, linear
    bool is_in_bytes = false;  // the largest value decides the unit
  };
  struct Chart {
    std::string id;
    std::vector<Plot> plots;
    bool is_wide = false;
  };

  void resume();
  void restore(const Json& history);
  LongSeries* series_for(const std::string& chart, const std::string& name);
  std::string history() const;
  void save();
  std::string thinning() const;
  std::string status() const;
  std::string cards() const;
  std::string evaluations() const;
  std::string generations() const;
  std::string pictures() const;
  std::string events() const;
  std::vector<Chart> charts() const;
  std::vector<Plot> loss_plots() const;

  RunPageSettings settings_;
  Logger& log_;
  DrawnFile file_;
  double earlier_s_ = 0;  // before resuming
  bool has_ended_ = false;
  Stopwatch since_start_;

  StepRecord last_;
  RunAverages averages_;
  int64_t num_steps_ = 0, num_skipped_ = 0, num_tokens_ = 0;
  TimeLeft time_left_;
  std::optional<double> left_s_;  // after the last step
  ExpertLoadWindow expert_loads_;
  LongSeries expert_max_, expert_min_;  // over the mean
  LongSeries train_loss_, learning_rate_, grad_norm_, tokens_per_s_, memory_used_, memory_peak_;
  std::vector<LongSeries> other_losses_, accuracies_, validation_;
  LongSeries loss_by_tokens_;
  std::vector<LongSeries> validation_by_tokens_;
  double tokens_per_sample_ = 0;
  std::deque<ValidationRecord> evaluations_;  // latest
  int64_t num_evaluations_ = 0;
  std::deque<GenerationRecord> generations_;  // latest
  int64_t num_generations_ = 0;
  // The PNG in base64.
  struct ShownPicture {
    int64_t iteration = 0;
    std::string prompt, png;
  };
  std::deque<ShownPicture> pictures_;  // latest
  std::deque<EventRecord> events_;     // latest
  bool has_unwritten_event_ = false;
};

}  // namespace megalith
