// page_file: one web page on a run, to keep open in a browser while it trains and to keep afterwards. Key numbers,
// loss, learning rate, gradient norm, throughput, memory, evaluations, texts and configuration; light or dark as the
// reader's system is, or as a button says; values under the pointer. One file: no network, no fonts, nothing to
// install.
//
// The page of a resumed run goes on from the page that is in the file. While the run goes on the page
// reloads itself. Neither the page nor the memory kept for it grows with the run: for a long run it draws the lowest,
// the highest and the mean of every few steps, and says of how many.
#pragma once

#include <deque>
#include <filesystem>
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

namespace megalith {

class Logger;

struct RunPageSettings {
  std::filesystem::path path;
  std::string title;          // "llama, 12.6 M parameters"
  std::string subtitle;       // "global batch 32 × 256 tokens, bf16"
  std::string configuration;  // as YAML; may be empty
  // Of a run that goes on after so many iterations: what the page in the file shows up to there is shown too. Without
  // an earlier page the curves begin here.
  int64_t resumed_after = 0;
  // The least number of seconds between two pages: after an evaluation, and after a step.
  double evaluation_every_s = 2, step_every_s = 10;
  SecondsClock clock = steady_seconds;
};

class RunPageSink : public MetricsSink {
 public:
  // Creates the folder and writes an empty page. UserError when that fails; later a page that cannot be written costs
  // one warning.
  RunPageSink(RunPageSettings settings, Logger& log);
  ~RunPageSink() override;

  void on_step(const StepRecord& record) override;
  void on_validation(const ValidationRecord& record) override;
  void on_generation(const GenerationRecord& record) override;
  void on_picture(const PictureRecord& record) override;
  void on_event(const EventRecord& record) override;
  void on_end() override;

  // The whole page as it stands.
  std::string render() const;

 private:
  // Several plots of one chart are the same curves over other axes, which buttons choose between.
  struct Plot {
    PlotSettings settings;
    std::vector<const LongSeries*> series;
    std::string axes = {};     // "tokens", "log", "tokens log"; empty: iterations, linear
    bool is_in_bytes = false;  // shown in the unit that suits the largest value
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
  double earlier_s_ = 0;  // that the run took before it was resumed
  bool has_ended_ = false;
  Stopwatch since_start_;

  StepRecord last_;
  RunAverages averages_;
  int64_t num_steps_ = 0, num_skipped_ = 0, num_tokens_ = 0;
  Stopwatch since_first_step_;  // the first step is slow: the time left is estimated without it
  ExpertLoadWindow expert_loads_;
  LongSeries expert_max_, expert_min_;  // over the mean, of a step
  LongSeries train_loss_, learning_rate_, grad_norm_, tokens_per_s_, memory_used_, memory_peak_;
  std::vector<LongSeries> other_losses_, accuracies_, validation_;
  LongSeries loss_by_tokens_;
  std::vector<LongSeries> validation_by_tokens_;
  double tokens_per_sample_ = 0;
  std::deque<ValidationRecord> evaluations_;  // the latest
  int64_t num_evaluations_ = 0;
  std::deque<GenerationRecord> generations_;  // the latest
  int64_t num_generations_ = 0;
  // A picture as the page holds it: a PNG file in base64.
  struct ShownPicture {
    int64_t iteration = 0;
    std::string prompt, png;
  };
  std::deque<ShownPicture> pictures_;  // the latest
  std::deque<EventRecord> events_;     // the latest
  bool has_unwritten_event_ = false;
};

}  // namespace megalith
