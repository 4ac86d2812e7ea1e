// A run of any length: what the sinks keep and what they draw stay bounded, and no spike is lost.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <vector>

#include "core/file.h"
#include "core/log.h"
#include "metrics/console.h"
#include "metrics/jsonl.h"
#include "metrics/long_series.h"
#include "metrics/loss_plot.h"
#include "metrics/run_page.h"
#include "metrics/tensorboard.h"
#include "metrics/training_progress.h"

namespace megalith {
namespace {

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(LongSeries, DrawsEveryPointOfAShortRun) {
  LongSeries series({.name = "train", .is_noisy = true}, 8);
  for (int i = 1; i <= 8; ++i) series.add(i, i % 3);
  const PlotSeries drawn = series.drawn();
  EXPECT_EQ(drawn.x, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(drawn.y, (std::vector<double>{1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(drawn.mean_x.empty());
  EXPECT_EQ(thinning_note(series, "steps"), "");
}

TEST(LongSeries, KeepsTheFirstTheLastTheSpikesAndTheMeans) {
  LongSeries series({.name = "train"}, 8);
  for (int i = 1; i <= 27; ++i) series.add(i, i == 13 ? 100 : i == 18 ? -50 : 1);  // bins of 4: 1-4, 5-8, …
  EXPECT_EQ(series.points_per_bin(), 4);
  EXPECT_EQ(series.num_bins(), 7u);
  EXPECT_EQ(series.num_points(), 27);
  EXPECT_EQ(series.least(), -50);
  EXPECT_EQ(series.last(), 1);
  const PlotSeries drawn = series.drawn();
  EXPECT_EQ(drawn.x.front(), 1);
  EXPECT_EQ(drawn.x.back(), 27);
  EXPECT_TRUE(std::is_sorted(drawn.x.begin(), drawn.x.end()));
  const auto value_at = [&](double x) {
    const auto found = std::find(drawn.x.begin(), drawn.x.end(), x);
    return found == drawn.x.end() ? std::nan("") : drawn.y[static_cast<size_t>(found - drawn.x.begin())];
  };
  EXPECT_EQ(value_at(13), 100);
  EXPECT_EQ(value_at(18), -50);
  EXPECT_EQ(drawn.mean_x, (std::vector<double>{2.5, 6.5, 10.5, 14.5, 18.5, 22.5, 26}));
  EXPECT_EQ(drawn.mean_y, (std::vector<double>{1, 1, 1, 103.0 / 4, -47.0 / 4, 1, 1}));
  EXPECT_EQ(thinning_note(series, "steps"), "of every 4 steps the lowest and the highest are drawn");
}

TEST(LongSeries, AValueThatIsNoNumberStaysAGap) {
  LongSeries series({.name = "train"}, 4);
  for (int i = 1; i <= 16; ++i) series.add(i, i == 6 ? std::nan("") : i);
  for (int i = 17; i <= 32; ++i) series.add(i, std::numeric_limits<double>::infinity());
  const PlotSeries drawn = series.drawn();
  EXPECT_EQ(std::count_if(drawn.y.begin(), drawn.y.end(), [](double y) { return std::isnan(y); }), 1);
  EXPECT_EQ(series.least(), 1);
  EXPECT_EQ(drawn.mean_y.front(), (1.0 + 2 + 3 + 4 + 5 + 7 + 8) / 7);
  EXPECT_TRUE(std::isnan(drawn.mean_y.back())) << "a bin without a finite value has no mean";
}

class LongRun : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static StepRecord step(int64_t iteration) {
    StepRecord record;
    record.iteration = iteration;
    record.train_iters = 1000000;
    record.losses = {{"lm loss", iteration == 71234 ? 987.5 : 2 + 0.1 * std::sin(static_cast<double>(iteration))},
                     {"mtp_1 loss", 3}};
    record.grad_norm = 1;
    record.learning_rate = 1e-3;
    record.elapsed_ms = 100;
    record.tokens = 1024;
    record.memory_peak_bytes = 1 << 20;
    record.observations = {{"expert_tokens", 0, {static_cast<double>(iteration), 2, 3, 4}}};
    return record;
  }
  static ValidationRecord evaluation(int64_t iteration) {
    return {.iteration = iteration, .when = "", .losses = {{"lm loss", 2 + 1.0 / static_cast<double>(iteration)}}};
  }
  static GenerationRecord sample(int64_t iteration) {
    return {.iteration = iteration, .prompt = "p", .continuation = std::string(100, 'c')};
  }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "long_run_test";
  double now_s_ = 0;  // of the sinks that draw
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
};

TEST_F(LongRun, NoSinkKeepsMoreAndMore) {
  const SecondsClock clock = [this] { return now_s_; };
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  LogOptions options;
  options.tensorboard_dir = (folder_ / "events").string();
  int64_t num_lines = 0;
  sinks.push_back(std::make_unique<ConsoleSink>(options, [&](std::string_view) { ++num_lines; }));
  sinks.push_back(std::make_unique<JsonlSink>(folder_ / "run.jsonl", log_));
  sinks.push_back(std::make_unique<LossPlotSink>(folder_ / "loss.svg", "llama", log_, clock));
  sinks.push_back(std::make_unique<RunPageSink>(RunPageSettings{.path = folder_ / "run.html", .clock = clock}, log_));
  sinks.push_back(std::make_unique<TensorboardSink>(options, log_));
  sinks.push_back(std::make_unique<TrainingProgress>(log_));
  const auto run = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i <= to; ++i) {
      for (const auto& sink : sinks) {
        sink->on_step(step(i));
        if (i % 10 == 0) sink->on_validation(evaluation(i));
        if (i % 10 == 0) sink->on_generation(sample(i));
      }
    }
  };
  run(1, 4000);  // all bins are there: the steps' and those of 400 evaluations
  const auto taken = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  const int64_t before = taken();
  run(4001, 100000);
  // Numbers with more digits may take another block; two bytes a step would be 192 KiB.
  EXPECT_LT(taken() - before, 32 << 10);
  EXPECT_EQ(num_lines, 100000 + 2 * 10000);
  EXPECT_EQ(logged_, "");
}

TEST_F(LongRun, ThePageAndThePlotStaySmallAndShowTheSpike) {
  RunPageSink page({.path = folder_ / "run.html", .clock = [this] { return now_s_; }}, log_);
  LossPlotSink plot(folder_ / "loss.svg", "llama", log_, [this] { return now_s_; });
  for (int64_t i = 1; i <= 100000; ++i) {
    for (MetricsSink* sink : {static_cast<MetricsSink*>(&page), static_cast<MetricsSink*>(&plot)}) {
      sink->on_step(step(i));
      if (i % 10 == 0) sink->on_validation(evaluation(i));
    }
  }
  page.on_end();
  plot.on_end();
  const std::string html = read_file(folder_ / "run.html"), svg = read_file(folder_ / "loss.svg");
  EXPECT_LT(html.size(), 1u << 20);
  EXPECT_LT(svg.size(), 1u << 17);
  // 100000 steps in at most 700 bins are 256 a bin, 10000 evaluations in 200 are 64.
  EXPECT_TRUE(holds(html,
                    "In the curves of every 256 steps the lowest and the highest are drawn; "
                    "of every 64 evaluations of validation the lowest and the highest are drawn."));
  EXPECT_TRUE(holds(svg, "llama · of every 256 steps the lowest and the highest are drawn"));
  EXPECT_TRUE(holds(html, "987.5")) << "the spike of one step";
  EXPECT_TRUE(holds(html, "(the last 12 of 10000)"));
}

// The files of a long run have only what was drawn, and a resumed run goes on from that.
TEST_F(LongRun, AResumedRunGoesOnFromItsThinnedCurves) {
  const auto clock = [this] { return now_s_; };
  {
    RunPageSink page({.path = folder_ / "run.html", .clock = clock}, log_);
    LossPlotSink plot(folder_ / "loss.svg", "llama", log_, clock);
    for (int64_t i = 1; i <= 90000; ++i) {
      page.on_step(step(i));
      plot.on_step(step(i));
      if (i % 10 == 0) page.on_validation(evaluation(i));
    }
    page.on_end();
    plot.on_end();
  }
  RunPageSink page({.path = folder_ / "run.html", .resumed_after = 80000, .clock = clock}, log_);
  LossPlotSink plot(folder_ / "loss.svg", "llama", log_, clock);
  plot.resume(80000);
  for (int64_t i = 80001; i <= 100000; ++i) {
    page.on_step(step(i));
    plot.on_step(step(i));
    if (i % 10 == 0) page.on_validation(evaluation(i));
  }
  const std::string html = page.render(), svg = plot.render();
  EXPECT_LT(html.size(), 1u << 20);
  EXPECT_LT(svg.size(), 1u << 17);
  // 100000 steps in at most 700 bins, as in one go.
  EXPECT_TRUE(holds(svg, "llama · of every 256 steps the lowest and the highest are drawn")) << svg.substr(0, 2000);
  EXPECT_TRUE(holds(html, "In the curves of every 256 steps the lowest and the highest are drawn;"));
  EXPECT_TRUE(holds(html, "987.5")) << "the spike of one step";
  EXPECT_TRUE(holds(html, "(the last 12 of 10000)"));
  EXPECT_EQ(logged_, "");
}

// 10 s of fast steps and evaluations cost one page and five plots, however many they are.
TEST_F(LongRun, WhatIsDrawnIsWrittenEverySoOftenAndAtTheEnd) {
  RunPageSink page({.path = folder_ / "run.html", .clock = [this] { return now_s_; }}, log_);
  LossPlotSink plot(folder_ / "loss.svg", "", log_, [this] { return now_s_; });
  const auto page_tells = [&] { return read_file(folder_ / "run.html"); };
  page.on_step(step(1));
  plot.on_step(step(1));
  plot.on_validation(evaluation(1));
  const std::string first_plot = read_file(folder_ / "loss.svg");
  now_s_ = 1.9;
  plot.on_step(step(2));
  plot.on_validation(evaluation(2));
  EXPECT_EQ(read_file(folder_ / "loss.svg"), first_plot);
  now_s_ = 2.1;
  plot.on_validation(evaluation(3));
  EXPECT_NE(read_file(folder_ / "loss.svg"), first_plot);
  now_s_ = 9.9;
  page.on_step(step(2));
  EXPECT_TRUE(holds(page_tells(), ">1 <small>of 1000000"));
  now_s_ = 10.1;
  page.on_step(step(3));
  EXPECT_TRUE(holds(page_tells(), ">3 <small>of 1000000"));
  page.on_step(step(4));
  EXPECT_TRUE(holds(page_tells(), ">3 <small>of 1000000"));
  page.on_end();
  EXPECT_TRUE(holds(page_tells(), ">4 <small>of 1000000"));
}

}  // namespace
}  // namespace megalith
