// The file of a trace: written and read back, and refused when it is broken.
#include "planner/pipeline_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "planner/schedules.h"

namespace megalith {
namespace {

using testing::complete_schedule;
using testing::equal_costs;

std::string refusal_of(const std::string& text) {
  try {
    parse_pipeline_trace(text, "trace.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// A sound trace of two ranks.
struct Sample {
  PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kZeroBubbleV, 2, 3);
  PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, {0.1, 0.25, 0.07}, 0.01));
  std::string text = pipeline_trace_json(schedule, simulated.ranks);
};

TEST(PipelineTrace, IsReadAsItWasWritten) {
  const Sample sample;
  const PipelineTrace trace = parse_pipeline_trace(sample.text, "trace.json");
  EXPECT_EQ(trace.schedule, "zbv");
  EXPECT_EQ(trace.shape.order, StageOrder::kVee);
  EXPECT_EQ(trace.shape.num_ranks, 2);
  EXPECT_EQ(trace.shape.num_chunks, 2);
  EXPECT_EQ(trace.shape.num_microbatches, 3);
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(trace.ranks[rank].size(), sample.simulated.ranks[rank].size());
    for (size_t index = 0; index < trace.ranks[rank].size(); ++index) {
      const TimedAction &read = trace.ranks[rank][index], &written = sample.simulated.ranks[rank][index];
      EXPECT_EQ(read.action, written.action);
      EXPECT_EQ(read.start, written.start);
      EXPECT_EQ(read.end, written.end);
      EXPECT_EQ(read.live, written.live);
    }
  }
  EXPECT_TRUE(compare_with_schedule(trace, sample.schedule).empty());
}

TEST(PipelineTrace, SaysWhatTheSimulatorSays) {
  const Sample sample;
  const PipelineTrace trace = make_trace(sample.schedule, sample.simulated);
  EXPECT_DOUBLE_EQ(trace.makespan(), sample.simulated.makespan);
  for (int rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(trace.peak_live(rank), sample.simulated.peak_live[r]);
    EXPECT_NEAR(trace.bubble_fraction(rank), 1 - sample.simulated.busy[r] / sample.simulated.makespan, 1e-12);
  }
  const PipelineCosts costs = measured_costs(trace);
  ASSERT_EQ(costs.stages.size(), 4u);
  for (const StageTimes& times : costs.stages) {
    EXPECT_NEAR(times.forward, 0.1, 1e-12);
    EXPECT_NEAR(times.input_backward, 0.25, 1e-12);
    EXPECT_NEAR(times.weight_backward, 0.07, 1e-12);
  }
}

TEST(PipelineTrace, AWholeBackwardIsSplitEvenly) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, 2, 4);
  const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, {1, 3, 1}));
  const PipelineCosts costs = measured_costs(make_trace(schedule, simulated));
  EXPECT_EQ(costs.stages[1].input_backward, 2);
  EXPECT_EQ(costs.stages[1].weight_backward, 2);
}

TEST(PipelineTrace, DifferencesFromTheScheduleAreTold) {
  const Sample sample;
  PipelineTrace trace = make_trace(sample.schedule, sample.simulated);
  std::swap(trace.ranks[0][2].action, trace.ranks[0][3].action);
  trace.ranks[1][4].live += 1;
  const std::vector<std::string> differences = compare_with_schedule(trace, sample.schedule);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_NE(differences[0].find("rank 0: action 2 was"), std::string::npos) << differences[0];
  EXPECT_NE(differences[1].find("rank 1: after action 4"), std::string::npos) << differences[1];
  trace = make_trace(sample.schedule, sample.simulated);
  trace.ranks[1].pop_back();
  ASSERT_EQ(compare_with_schedule(trace, sample.schedule).size(), 1u);
  EXPECT_NE(compare_with_schedule(trace, sample.schedule)[0].find("was nothing"), std::string::npos);
  ASSERT_EQ(compare_with_schedule(trace, complete_schedule(PipelineAlgorithm::kZeroBubbleV, 2, 4)).size(), 1u);
}

TEST(PipelineTrace, EveryTruncationIsRefusedWithTheFilesName) {
  const std::string text = Sample().text;
  for (size_t length = 0; length < text.size(); length += 7) {
    EXPECT_EQ(refusal_of(text.substr(0, length)).find("trace.json"), 0u) << length;
  }
}

TEST(PipelineTrace, BrokenFilesAreRefused) {
  struct Case {
    const char* what;
    std::function<void(Json&)> breaks;
    const char* part;
  };
  const Case cases[] = {
      {"no schedule", [](Json& j) { j.erase("schedule"); }, "schedule"},
      {"no ranks", [](Json& j) { j.erase("ranks"); }, "ranks"},
      {"ranks are a number", [](Json& j) { j["ranks"] = 3; }, "ranks is no list"},
      {"one list missing", [](Json& j) { j["ranks"].erase(1); }, "lists of 1 ranks, num_ranks is 2"},
      {"a list is an object", [](Json& j) { j["ranks"][1] = Json::object(); }, "rank 1 is no list"},
      {"an action is a number", [](Json& j) { j["ranks"][0][1] = 5; }, "rank 0, action 1"},
      {"huge counts", [](Json& j) { j["num_ranks"] = 1 << 30; }, "num_ranks is 1073741824"},
      {"no microbatches", [](Json& j) { j["num_microbatches"] = 0; }, "num_microbatches is 0"},
      {"half a chunk", [](Json& j) { j["num_chunks"] = 1.5; }, "num_chunks"},
      {"a V of three", [](Json& j) { j["num_chunks"] = 3; }, "vee with 3 chunks"},
      {"another order", [](Json& j) { j["order"] = "zigzag"; }, "zigzag"},
      {"no action", [](Json& j) { j["ranks"][0][0]["action"] = "F0"; }, "'F0' is no action"},
      {"chunk out of range", [](Json& j) { j["ranks"][0][0]["action"] = "F2.0"; }, "F2.0 does not belong"},
      {"microbatch out of range", [](Json& j) { j["ranks"][0][0]["action"] = "F0.3"; }, "F0.3 does not belong"},
      {"peer out of range", [](Json& j) { j["ranks"][0][0]["action"] = "F0.0>2"; }, "F0.0>2 does not belong"},
      {"ends before it starts", [](Json& j) { j["ranks"][0][0]["end_s"] = -1; }, "F0.0 from 0 to -1"},
      {"a time that is text", [](Json& j) { j["ranks"][0][0]["start_s"] = "soon"; }, "start_s"},
      {"a time without bound", [](Json& j) { j["ranks"][0][0]["end_s"] = 1e300; }, "1e+300"},
      {"less than nothing alive", [](Json& j) { j["ranks"][1][0]["live"] = -1; }, "-1 activations"},
      {"more alive than there are", [](Json& j) { j["ranks"][1][0]["live"] = 7; }, "7 activations"},
      {"no list at all", [](Json& j) { j = Json::array(); }, "trace.json"},
  };
  const std::string text = Sample().text;
  for (const Case& one : cases) {
    Json json = parse_json(text, "sample");
    one.breaks(json);
    const std::string refusal = refusal_of(dump_json(json));
    EXPECT_EQ(refusal.find("trace.json"), 0u) << one.what << ": " << refusal;
    EXPECT_NE(refusal.find(one.part), std::string::npos) << one.what << ": " << refusal;
  }
}

}  // namespace
}  // namespace megalith
