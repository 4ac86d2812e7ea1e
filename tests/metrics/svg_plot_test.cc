// The chart: ticks are round and cover the data, awkward data do no harm, and the file is written.
#include "metrics/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "metrics/loss_plot.h"

namespace megalith {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(RoundTicks, CoverTheRangeInRoundSteps) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(2.3, 10.4, 6), (std::vector<double>{2, 4, 6, 8, 10, 12}));
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{-3, 1e6}, {1e-7, 3e-7}, {-0.02, -0.01}, {99, 101}}) {
    const std::vector<double> ticks = round_ticks(low, high, 6);
    ASSERT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 10u);
    const double step = ticks[1] - ticks[0];
    EXPECT_LE(ticks.front(), low + 1e-6 * step);
    EXPECT_GE(ticks.back(), high - 1e-6 * step);
  }
}

TEST(SvgPlot, DrawsEverySeriesWithLegendAndEscapedText) {
  const std::string svg = render_svg_plot({.title = "a < b & \"c\"", .x_label = "iteration", .y_label = "loss"},
                                          {{.name = "train", .x = {1, 2, 3}, .y = {3, 2, 1}},
                                           {.name = "validation", .x = {1, 3}, .y = {3.5, 1.25}, .has_markers = true}});
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(count(svg, "<path"), 2u);
  EXPECT_EQ(count(svg, "<circle"), 3u) << "two points and the legend's";
  EXPECT_NE(svg.find(">train 1<"), std::string::npos);
  EXPECT_NE(svg.find(">validation 1.25<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(SvgPlot, GapsLonePointsAndNothingAtAll) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::string gap = render_svg_plot({}, {{.name = "x", .x = {1, 2, 3, 4, 5}, .y = {1, 2, nan, inf, 5}}});
  EXPECT_EQ(count(gap, "<path"), 2u);
  EXPECT_EQ(gap.find("nan"), std::string::npos);
  EXPECT_EQ(gap.find("inf"), std::string::npos);
  EXPECT_EQ(count(render_svg_plot({}, {{.name = "x", .x = {7}, .y = {0}}}), "<circle"), 1u);
  EXPECT_NE(render_svg_plot({}, {{.name = "x", .x = {1}, .y = {nan}}}).find("nothing to show"), std::string::npos);
  EXPECT_EQ(
      count(render_svg_plot({.has_log_x = true}, {{.name = "x", .x = {0, 1, 10, 1000}, .y = {9, 1, 2, 3}}}), "<path"),
      1u);
  EXPECT_THROW((void)render_svg_plot({}, {{.name = "x", .x = {1, 2}, .y = {1}}}), InternalError);
}

TEST(SvgPlot, ALogarithmicAxisHasTicksInANarrowRangeToo) {
  const auto has_ticks = [](double low, double high, const std::vector<std::string>& ticks) {
    const std::string svg =
        render_svg_plot({.has_log_x = true, .has_log_y = true}, {{.name = "x", .x = {1, 100}, .y = {high, low}}});
    for (const std::string& tick : ticks) EXPECT_NE(svg.find(">" + tick + "</text>"), std::string::npos) << tick;
  };
  has_ticks(2.5, 4.8, {"3", "4", "5"});
  has_ticks(2.65, 2.95, {"2.4", "2.6", "2.8"});
  has_ticks(0.02, 7, {"0.02", "0.1", "5"});
  has_ticks(3, 80000, {"10", "10.0 k"});
}

TEST(SvgPlot, CountsHaveNoTicksBetweenWholeNumbers) {
  const PlotSeries three{.name = "x", .x = {1, 2, 3}, .y = {7, 7, 7}};
  EXPECT_EQ(render_svg_plot({.has_whole_x = true, .width = 590}, {three}).find(">1.5</text>"), std::string::npos);
  EXPECT_NE(render_svg_plot({.width = 590}, {three}).find(">1.5</text>"), std::string::npos);
}

TEST(SvgPlot, ALongSeriesStaysSmall) {
  PlotSeries series{.name = "train"};
  for (int i = 0; i < 200000; ++i) {
    series.x.push_back(i);
    series.y.push_back(std::sin(i * 0.37));
  }
  // At most four points a pixel column, some 12 bytes each.
  EXPECT_LT(render_svg_plot({}, {series}).size(), 860u * 4 * 16);
}

TEST(LossPlot, IsWrittenAfterEvaluationsAndAtTheEnd) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "loss_plot_test";
  std::filesystem::remove_all(folder);
  Logger log({.write = [](std::string_view) {}});
  LossPlotSink sink(folder / "loss.svg", "llama 12.6 M", log);
  for (int64_t i = 1; i <= 300; ++i) {
    StepRecord record;
    record.iteration = i;
    const double x = static_cast<double>(i);
    record.losses = {{"lm loss", 2.2 + 8 / (1 + x / 12) + 0.12 * std::sin(x * 12.9898) * std::cos(x * 78.233)}};
    sink.on_step(record);
    if (i % 50 == 0) {
      sink.on_validation({.iteration = i, .when = "iteration", .losses = {{"lm loss", 2.35 + 8 / (1 + x / 12)}}});
      EXPECT_TRUE(std::filesystem::exists(folder / "loss.svg"));
    }
  }
  sink.on_end();
  const std::string svg = read_file(folder / "loss.svg");
  EXPECT_EQ(count(svg, "<path"), 3u) << "raw and mean of train, validation";
  EXPECT_NE(svg.find("llama 12.6 M"), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace megalith
