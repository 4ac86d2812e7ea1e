// Pictures of pipelines, compared whole.
#include "planner/pipeline_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "planner/schedules.h"

namespace megalith {
namespace {

using testing::complete_schedule;
using testing::described;
using testing::equal_costs;

PipelineTrace simulated_trace(const PipelineSchedule& schedule, const StageTimes& times = {}) {
  return make_trace(schedule, simulate_pipeline(schedule, equal_costs(schedule, times)));
}

TEST(PipelinePicture, OneForwardOneBackwardAsText) {
  const std::string expected =
      "simulated 1f1b: a column is 1, all 15\n"
      "        0              5              10\n"
      "rank 0  F0 F1 F2 .  .  .  .  B0--- .  B1--- .  B2---  bubble 40.0 %  peak 3\n"
      "rank 1  .  F0 F1 .  .  B0--- F2 B1--- .  B2--- .  .   bubble 40.0 %  peak 2\n"
      "rank 2  .  .  F0 B0--- F1 B1--- F2 B2--- .  .  .  .   bubble 40.0 %  peak 1\n";
  const std::string text = pipeline_text(simulated_trace(complete_schedule(PipelineAlgorithm::k1f1b, 3, 3)));
  EXPECT_EQ(text, expected);
}

TEST(PipelinePicture, TwoStagesOfARankDifferInTheirLetters) {
  const std::string expected =
      "simulated zbv: a column is 1, all 14\n"
      "capitals: a rank's first stage, small letters: its second\n"
      "        0              5              10\n"
      "rank 0  F0 F1 .  f0 i0 w0 f1 i1 w1 I0 W0 .  I1 W1  bubble 14.3 %  peak 3\n"
      "rank 1  .  F0 f0 F1 f1 i0 w0 I0 W0 i1 w1 I1 W1 .   bubble 14.3 %  peak 4\n";
  EXPECT_EQ(pipeline_text(simulated_trace(complete_schedule(PipelineAlgorithm::kZeroBubbleV, 2, 2))), expected);
}

TEST(PipelinePicture, LinesFitTheColumns) {
  for (const int columns : {60, 80, 120}) {
    for (const PipelineSchedule& schedule :
         {complete_schedule(PipelineAlgorithm::k1f1b, 8, 24), complete_schedule(PipelineAlgorithm::k1f1b, 4, 12, 3),
          complete_schedule(PipelineAlgorithm::kZeroBubbleV, 4, 9)}) {
      const std::string text = pipeline_text(simulated_trace(schedule, {1, 1.5, 0.5}), nullptr, columns);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        EXPECT_LE(end - begin, static_cast<size_t>(columns)) << text.substr(begin, end - begin);
        begin = end + 1;
      }
      // Every computation begins somewhere, also in the last of the parts.
      for (const Action& action : schedule.ranks[1]) {
        if (is_communication(action.kind)) continue;
        std::string label = action.text();
        if (schedule.shape.num_chunks <= 2) {
          const char letter = action.chunk == 0 ? label.front() : static_cast<char>(std::tolower(label.front()));
          label = letter + std::to_string(action.microbatch);
        }
        EXPECT_NE(text.find(label), std::string::npos) << described(schedule) << " " << label;
      }
    }
  }
}

TEST(PipelinePicture, AMeasuredTraceHasTheSameWidth) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kGpipe, 2, 2);
  const PipelineTrace simulated = simulated_trace(schedule);
  PipelineTrace measured = simulated;
  for (auto& actions : measured.ranks) {
    for (TimedAction& timed : actions) {
      timed.start = 5 + timed.start / 100;
      timed.end = 5 + timed.end / 100;
    }
  }
  const std::string text = pipeline_text(simulated, &measured);
  const size_t middle = text.find("\nmeasured gpipe: a column is 0.01 s, all 0.09 s\n");
  ASSERT_NE(middle, std::string::npos) << text;
  const auto body = [](const std::string& part) { return part.substr(part.find('\n') + 1); };
  EXPECT_EQ(body(text.substr(0, middle)), body(text.substr(middle + 1)));
}

TEST(PipelinePicture, NothingToDrawIsDrawnAsNothing) {
  PipelineTrace empty;
  empty.schedule = "empty";
  empty.ranks.resize(1);
  EXPECT_NE(pipeline_text(empty).find("rank 0"), std::string::npos);
  EXPECT_NE(pipeline_svg(empty).find("</svg>"), std::string::npos);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PipelinePicture, TheDrawingHasABoxForEachComputation) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kZeroBubbleV, 3, 6);
  const PipelineTrace trace = simulated_trace(schedule);
  const std::string svg = pipeline_svg(trace, &trace);
  // Titles name 3 ranks x 2 chunks x 6 microbatches x (F, I, W), simulated and measured.
  EXPECT_EQ(count(svg, "<title>"), 2u * 3 * 2 * 6 * 3);
  EXPECT_EQ(count(svg, "<title>"), count(svg, "</title></rect>"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(svg.find("<svg "), 0u);
  EXPECT_NE(svg.find("measured: zbv"), std::string::npos);
  EXPECT_NE(svg.find("W gradients of the weights"), std::string::npos);
  EXPECT_EQ(svg.find("B backward"), std::string::npos);  // none there, none in the legend
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(PipelinePicture, NamesFromAFileCannotBecomeMarkup) {
  PipelineTrace trace = simulated_trace(complete_schedule(PipelineAlgorithm::kGpipe, 2, 2));
  trace.schedule = "<script>alert(1)</script>&\"";
  const std::string svg = pipeline_svg(trace);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;"), std::string::npos);
}

}  // namespace
}  // namespace megalith
