// The page of a run: what it tells, that it loads nothing, that any text and any number is harmless, when it is
// written.
#include "metrics/run_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"

namespace megalith {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Json points_of(const std::string& page) {
  const std::string begin = "id=\"points\">";
  const size_t from = page.find(begin) + begin.size();
  return parse_json(page.substr(from, page.find("</script>", from) - from), "points");
}

class Page : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  RunPageSettings settings() const {
    return {.path = folder_ / "run.html",
            .title = "llama, 12.6 M parameters",
            .subtitle = "global batch 32 × 256 tokens",
            .configuration = "lr: 0.001\n"};
  }
  static StepRecord step(int64_t iteration, int64_t train_iters = 400) {
    const double x = static_cast<double>(iteration);
    StepRecord record;
    record.iteration = iteration;
    record.train_iters = train_iters;
    record.losses = {{"lm loss", 2.2 + 8 / (1 + x / 12) + 0.12 * std::sin(x * 12.9898) * std::cos(x * 78.233)}};
    record.learning_rate = 1e-3 * std::min(x / 40, 0.5 + 0.5 * std::cos(3.14159 * x / 400));
    record.grad_norm = 0.4 + 40 / (1 + x) + 0.1 * std::sin(x * 7.1);
    record.elapsed_ms = iteration == 1 ? 2000 : 200 + 8 * std::sin(x * 3.3);
    record.tokens = 32 * 256;
    record.flops = 6e11;
    record.memory_used_bytes = int64_t{5} << 28;
    record.memory_total_bytes = int64_t{16} << 30;
    record.memory_peak_bytes = int64_t{7} << 27;
    return record;
  }
  static ValidationRecord evaluation(int64_t iteration, const std::string& set = "validation") {
    return {.iteration = iteration,
            .consumed_samples = 32 * iteration,
            .set = set,
            .when = "",
            .losses = {{"lm loss", 2.35 + 8 / (1 + static_cast<double>(iteration) / 12)}}};
  }
  std::string page() const { return read_file(folder_ / "run.html"); }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "run_page_test";
  std::string logged_;
  Logger log_{{.write = [this](std::string_view text) { logged_ += text; }}};
};

TEST_F(Page, TellsWhatTheRunDid) {
  RunPageSink sink(settings(), log_);
  for (int64_t i = 1; i <= 400; ++i) {
    sink.on_step(step(i));
    if (i % 50 == 0) sink.on_validation(evaluation(i));
  }
  sink.on_validation(evaluation(400, "test"));
  sink.on_end();
  const std::string text = page();
  for (const char* part :
       {"<h1>llama, 12.6 M parameters</h1>", "global batch 32 × 256 tokens", "chip finished", "400 <small>of 400",
        "lr: 0.001", "<td>validation</td><td>350</td><td>11.2 k</td>", "<td class=\"best\">2.583</td>",
        "validation 2.583<br>best 2.583", "<td>test</td>", "1.25 GiB <small>8 %", "tensors at most<br>896 MiB"}) {
    EXPECT_TRUE(has(text, part)) << part;
  }
  for (const char* chart : {"Loss", "Learning rate", "Gradient norm", "Throughput", "Memory"}) {
    EXPECT_TRUE(has(text, fmt::format("aria-label=\"{}\"", chart))) << chart;
  }
  EXPECT_FALSE(has(text, "nothing to show"));
  EXPECT_FALSE(has(text, "Other losses"));
  EXPECT_FALSE(has(text, "http-equiv=\"refresh\"")) << "a finished run has no news";
}

// The text of the chart with this title, from the first of its plots to the end of it.
std::string svg_titled(const std::string& page, const std::string& title, int which = 0) {
  size_t at = page.find(fmt::format("aria-label=\"{}\"", title));
  for (int i = 0; i < which; ++i) at = page.find(fmt::format("aria-label=\"{}\"", title), at + 1);
  const size_t from = page.rfind("<svg", at);
  return page.substr(from, page.find("</svg>", from) - from);
}

TEST_F(Page, EveryNumberHasACardAndAUnitOfItsOwn) {
  RunPageSink sink(settings(), log_);
  for (int64_t i = 1; i <= 4; ++i) {
    StepRecord record = step(i, 4);
    record.memory_used_bytes = int64_t{300} << 20;
    record.memory_peak_bytes = int64_t{150} << 20;
    record.peak_flops_per_device = 6e12;
    sink.on_step(record);
  }
  const std::string text = sink.render();
  EXPECT_TRUE(has(text, "<div class=\"name\">Learning rate</div>"));
  EXPECT_TRUE(has(text, "<div class=\"name\">MFU</div>"));
  EXPECT_TRUE(has(text, "<div class=\"name\">Gradient norm</div>"));
  const std::string memory = svg_titled(text, "Memory");
  EXPECT_TRUE(has(memory, ">MiB</text>")) << memory;
  EXPECT_TRUE(has(memory, "in use 300<")) << memory;
  // Four iterations: no ticks between whole ones.
  EXPECT_TRUE(has(memory, ">2</text>") && has(memory, ">3</text>")) << memory;
  EXPECT_FALSE(has(memory, ">2.5</text>")) << memory;
}

TEST_F(Page, TheLossHasATokenAxisAndLogarithmicAxes) {
  RunPageSink sink(settings(), log_);
  for (int64_t i = 1; i <= 40; ++i) {
    StepRecord record = step(i, 40);
    record.global_batch_size = 32;
    record.consumed_samples = 32 * (100 + i);  // a run that was resumed after 100 steps
    sink.on_step(record);
  }
  ValidationRecord evaluated = evaluation(40);
  evaluated.consumed_samples = 32 * 140;
  sink.on_validation(evaluated);
  const std::string text = sink.render();
  for (const char* axes : {"data-axes=\"\"", "data-axes=\"tokens\" hidden", "data-axes=\"log\" hidden",
                           "data-axes=\"tokens log\" hidden"}) {
    EXPECT_TRUE(has(text, axes)) << axes;
  }
  // The buttons that choose are below all plots of the chart, not over the label of an axis.
  EXPECT_GT(text.find("<div class=\"axes\">"), text.find("data-axes=\"tokens log\" hidden"));
  EXPECT_LT(text.find("<div class=\"axes\">"), text.find("<div class=\"chart\""));
  EXPECT_TRUE(has(text, ".axes { display: flex;")) << "not placed over something";
  const Json by_tokens = points_of(text).at("loss_by_tokens");
  EXPECT_EQ(by_tokens.at(0).at("x").at(0), 101 * 32 * 256);
  EXPECT_EQ(by_tokens.at(1).at("x").at(0), 140 * 32 * 256);
  EXPECT_EQ(by_tokens.at(0).at("y"), points_of(text).at("loss").at(0).at("y"));
  EXPECT_TRUE(has(svg_titled(text, "Loss", 1), ">tokens</text>"));
  EXPECT_TRUE(has(svg_titled(text, "Loss", 2), " 1\" role=\"img\"")) << "both axes are logarithmic";
  EXPECT_TRUE(has(svg_titled(text, "Loss", 0), " 0\" role=\"img\""));
}

TEST_F(Page, LoadsNothing) {
  RunPageSink sink(settings(), log_);
  sink.on_step(step(1));
  const std::string text = page();
  EXPECT_TRUE(has(text, "default-src 'none'"));
  for (const char* part : {"https://", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_FALSE(has(text, part)) << part;
  }
  // The only address is the name space of SVG.
  for (size_t at = text.find("http://"); at != std::string::npos; at = text.find("http://", at + 1)) {
    EXPECT_EQ(text.compare(at, 26, "http://www.w3.org/2000/svg"), 0) << text.substr(at, 40);
  }
}

TEST_F(Page, AnyTextAndAnyNumberIsHarmless) {
  RunPageSettings hostile = settings();
  hostile.title = hostile.subtitle = hostile.configuration = "<script>alert('&')</script>\x1b[8m\u202e";
  RunPageSink sink(hostile, log_);
  StepRecord record = step(1);
  record.losses = {{"lm loss", kNan}, {"</script><b>", std::numeric_limits<double>::infinity()}};
  record.grad_norm.reset();
  record.memory_total_bytes = record.memory_peak_bytes = 0;
  sink.on_step(record);
  sink.on_validation({.iteration = 1, .set = "<i>", .when = "", .losses = {{"lm loss", kNan}}});
  sink.on_end();
  const std::string text = page();
  EXPECT_FALSE(has(text, "<script>alert"));
  EXPECT_FALSE(has(text, "\x1b") || has(text, "\u202e"));
  EXPECT_TRUE(has(text, "\\x1b[8m\\u202e"));
  EXPECT_FALSE(has(text, "<i>"));
  EXPECT_FALSE(has(text, "</script><b>"));
  EXPECT_TRUE(has(text, "NaN"));
  const Json points = points_of(text);
  EXPECT_TRUE(points.at("loss").at(0).at("y").at(0).is_null());
  EXPECT_EQ(points.at("other_losses").at(0).at("name"), "</script><b>");
  EXPECT_FALSE(points.contains("grad_norm"));
}

TEST_F(Page, AccuraciesAreNoLosses) {
  RunPageSink sink(settings(), log_);
  StepRecord record = step(1);
  record.losses = {{"lm loss", 3.0}, {"sop loss", 0.7}, {"sop accuracy", 0.5}, {"top5_acc", 0.25}};
  sink.on_step(record);
  sink.on_end();
  const Json points = points_of(page());
  ASSERT_EQ(points.at("other_losses").size(), 1U);
  ASSERT_EQ(points.at("accuracies").size(), 2U);
  EXPECT_EQ(points.at("accuracies").at(0).at("name"), "sop accuracy");
  EXPECT_EQ(points.at("accuracies").at(1).at("y").at(0), 0.25);
  EXPECT_TRUE(has(page(), "percent"));
}

TEST_F(Page, ShowsTheLatestSamplesAsText) {
  RunPageSink sink(settings(), log_);
  sink.on_step(step(1));
  sink.on_generation({.iteration = 1, .prompt = "Call <me>", .continuation = " </pre><script>x"});
  sink.on_end();
  EXPECT_TRUE(has(page(), "<h2>Samples</h2>"));
  EXPECT_TRUE(
      has(page(), "<h3>iteration 1</h3><pre class=\"text\"><b>Call &lt;me&gt;</b> &lt;/pre&gt;&lt;script&gt;x</pre>"));
  for (int64_t i = 2; i <= 50; ++i) sink.on_generation({.iteration = i, .prompt = "p", .continuation = "c"});
  sink.on_end();
  EXPECT_TRUE(has(page(), "the last 20 of 50"));
  EXPECT_TRUE(has(page(), "<h3>iteration 31</h3>"));
  EXPECT_FALSE(has(page(), "<h3>iteration 30</h3>"));
  EXPECT_LT(page().find("<h3>iteration 50</h3>"), page().find("<h3>iteration 49</h3>"));
}

TEST_F(Page, IsThereFromTheStartAndNotWrittenAtEveryStep) {
  RunPageSettings often = settings();
  often.evaluation_every_s = 0;
  RunPageSink sink(often, log_);
  EXPECT_TRUE(has(page(), ">starting<")) << "before the first step";
  EXPECT_TRUE(has(page(), "http-equiv=\"refresh\""));
  sink.on_step(step(1));
  EXPECT_TRUE(has(page(), "1 <small>of 400"));
  sink.on_step(step(2));
  EXPECT_TRUE(has(page(), "1 <small>of 400")) << "less than step_every_s ago";
  sink.on_validation(evaluation(2));
  EXPECT_TRUE(has(page(), "2 <small>of 400"));
  sink.on_end();
  EXPECT_TRUE(has(page(), "stopped at 2 of 400"));
}

TEST_F(Page, EvaluationsInARowAreWrittenOnce) {
  RunPageSink sink(settings(), log_);
  sink.on_step(step(1));
  sink.on_validation(evaluation(1));
  EXPECT_FALSE(has(page(), "<td>validation</td>")) << "less than evaluation_every_s ago";
}

// Two hundred thousand steps: what is drawn and what is under the pointer stay bounded.
TEST_F(Page, ALongRunStaysSmall) {
  RunPageSink sink(settings(), log_);
  for (int64_t i = 1; i <= 200000; ++i) sink.on_step(step(i, 200000));
  const std::string text = sink.render();
  EXPECT_LT(text.size(), 1u << 20);
  const Json loss = points_of(text).at("loss").at(0);
  EXPECT_LE(loss.at("x").size(), 1501u);
  EXPECT_EQ(loss.at("x").back(), 200000);
  EXPECT_EQ(loss.at("x").size(), loss.at("y").size());
}

TEST_F(Page, APlaceThatCannotBeWrittenIsAUserErrorAtTheStartAndAWarningLater) {
  std::filesystem::create_directories(folder_ / "run.html");
  EXPECT_THROW(RunPageSink(settings(), log_), UserError);
  std::filesystem::remove(folder_ / "run.html");
  RunPageSink sink(settings(), log_);
  std::filesystem::remove(folder_ / "run.html");
  std::filesystem::create_directories(folder_ / "run.html");
  sink.on_step(step(1));
  EXPECT_TRUE(has(logged_, "page_file")) << logged_;
  const std::string first = logged_;
  sink.on_end();
  EXPECT_EQ(logged_, first);
}

TEST(SvgPlot, WideRangesAreLogarithmicWhenAllowed) {
  const PlotSeries wide{.name = "norm", .x = {1, 2, 3}, .y = {100, 1, 0.5}};
  PlotSettings settings{.is_log_if_wide = true, .has_style = false};
  const std::string svg = render_svg_plot(settings, {wide});
  EXPECT_TRUE(has(svg, "data-y=\"0.45 110 408.0 76.0 1\"")) << svg.substr(0, 300);
  EXPECT_FALSE(has(svg, "<style>"));
  EXPECT_TRUE(has(render_svg_plot(settings, {{.name = "norm", .x = {1, 2}, .y = {2, 1}}}), " 76.0 0\""));
  EXPECT_TRUE(has(render_svg_plot(settings, {{.name = "norm", .x = {1, 2}, .y = {100, 0}}}), " 76.0 0\""));
}

}  // namespace
}  // namespace megalith
