// Bubbles and peaks against the published formulas, over all shapes.
#include "planner/pipeline_simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "planner/schedules.h"

namespace megalith {
namespace {

using testing::complete_schedule;
using testing::described;
using testing::equal_costs;

// Times are small whole numbers or halves and thirds of them: sums are exact to a few roundings.
constexpr double kExact = 1e-9;

constexpr StageTimes kTimes[] = {{1, 1, 1}, {2, 3, 1}, {3, 4, 2}, {1, 2, 3}};

TEST(PipelineSimulator, GpipeAndOneForwardOneBackwardIdleForTheOtherRanks) {
  for (const StageTimes& times : kTimes) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {p, p + 1, 2 * p, 24}) {
        const double backward = times.input_backward + times.weight_backward;
        for (const auto algorithm : {PipelineAlgorithm::kGpipe, PipelineAlgorithm::k1f1b}) {
          const PipelineSchedule schedule = complete_schedule(algorithm, p, m);
          const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, times));
          const double bubble = (p - 1) * (times.forward + backward);
          EXPECT_NEAR(simulated.bubble_time(), bubble, kExact) << described(schedule);
          EXPECT_NEAR(simulated.bubble_fraction(), bubble / (bubble + m * (times.forward + backward)), kExact);
          for (int rank = 0; rank < p; ++rank) {
            const int peak = algorithm == PipelineAlgorithm::kGpipe ? m : std::min(p - rank, m);
            EXPECT_EQ(simulated.peak_live[static_cast<size_t>(rank)], peak) << described(schedule) << " rank " << rank;
          }
        }
      }
    }
  }
}

TEST(PipelineSimulator, InterleavedIdlesOneChunkthOfThat) {
  for (const StageTimes& times : kTimes) {
    for (int p = 2; p <= 6; ++p) {
      for (int v = 2; v <= 4; ++v) {
        for (const int rounds : {1, 2, 3}) {
          const int m = rounds * p;
          const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, p, m, v);
          const StageTimes chunk{times.forward / v, times.input_backward / v, times.weight_backward / v};
          const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, chunk));
          EXPECT_NEAR(simulated.bubble_time(),
                      (p - 1) * (times.forward + times.input_backward + times.weight_backward) / v, kExact)
              << described(schedule);
          for (int rank = 0; rank < p; ++rank) {
            EXPECT_EQ(simulated.peak_live[static_cast<size_t>(rank)],
                      std::min((p - rank - 1) * 2 + (v - 1) * p + 1, m * v))
                << described(schedule) << " rank " << rank;
          }
        }
      }
    }
  }
}

// (p - 1)(F + I - W), as published, where W takes no longer than F and than I.
TEST(PipelineSimulator, ZeroBubbleFillsTheEndWithWeights) {
  for (const StageTimes& times : {StageTimes{1, 1, 1}, StageTimes{2, 3, 1}, StageTimes{3, 4, 2}, StageTimes{2, 1, 1}}) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {p, p + 1, 2 * p, 24}) {
        const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kZeroBubble, p, m);
        const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, times));
        EXPECT_NEAR(simulated.bubble_time(), (p - 1) * (times.forward + times.input_backward - times.weight_backward),
                    kExact)
            << described(schedule);
        // Memory of 1F1B: no rank above its rank 0.
        EXPECT_EQ(*std::max_element(simulated.peak_live.begin(), simulated.peak_live.end()), p) << described(schedule);
      }
    }
  }
}

TEST(PipelineSimulator, ZeroBubbleVWaitsForTheFirstMicrobatchAlone) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = std::max(2 * p - 1, 1); m <= 4 * p; ++m) {
      const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kZeroBubbleV, p, m);
      const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule));
      // The last rank begins after p - 1 forwards and has 6 m of work: nothing can be faster.
      EXPECT_EQ(simulated.makespan, 6 * m + p - 1) << described(schedule);
      for (int rank = 0; rank < p; ++rank) {
        // No rank waits between its first and its last action.
        const std::vector<TimedAction>& actions = simulated.ranks[static_cast<size_t>(rank)];
        double first = -1, last = 0;
        for (const TimedAction& timed : actions) {
          if (is_communication(timed.action.kind)) continue;
          if (first < 0) first = timed.start;
          last = timed.end;
        }
        EXPECT_EQ(last - first, 6 * m) << described(schedule) << " rank " << rank;
        // Two chunks are a rank's layers: p whole microbatches, as rank 0 of 1F1B.
        EXPECT_LE(simulated.peak_live[static_cast<size_t>(rank)], 2 * p);
      }
    }
  }
}

// All algorithms, all shapes they know: the check passes, peaks stay below the bounds, work is what was asked for.
TEST(PipelineSimulator, EveryScheduleRuns) {
  int num_schedules = 0;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      std::vector<PipelineSchedule> schedules = {complete_schedule(PipelineAlgorithm::kGpipe, p, m),
                                                 complete_schedule(PipelineAlgorithm::k1f1b, p, m),
                                                 complete_schedule(PipelineAlgorithm::kZeroBubble, p, m),
                                                 complete_schedule(PipelineAlgorithm::kZeroBubbleV, p, m)};
      for (int v = 2; v <= 4; ++v) {
        schedules.push_back(complete_schedule(PipelineAlgorithm::kGpipe, p, m, v));
        schedules.push_back(with_communication(make_forward_schedule({p, v, m, StageOrder::kLoop})));
        for (const int group : {p, p + 1, 2 * p}) {
          if (m % group != 0 && m % group < p) continue;
          schedules.push_back(complete_schedule(PipelineAlgorithm::k1f1b, p, m, v, group));
        }
      }
      schedules.push_back(with_communication(make_forward_schedule({p, 2, m, StageOrder::kVee})));
      schedules.push_back(
          with_communication(make_pipeline_schedule(PipelineAlgorithm::kGpipe, {p, 2, m, StageOrder::kVee})));
      for (const PipelineSchedule& schedule : schedules) {
        SCOPED_TRACE(described(schedule));
        ++num_schedules;
        // Uneven stages, so that what happens to fit with equal times is not taken for right.
        PipelineCosts costs = equal_costs(schedule, {1, 1, 1}, 0.25);
        for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
          const double slow = 1 + static_cast<double>(stage * 7 % 5);
          costs.stages[stage] = {slow, 1.5 * slow, 0.5 * slow};
        }
        const PipelineSimulation simulated = simulate_pipeline(schedule, costs);
        double work = 0, busy = 0;
        const bool has_backward = schedule.name != "forward";
        for (const StageTimes& t : costs.stages) {
          work += m * (t.forward + (has_backward ? t.input_backward + t.weight_backward : 0));
        }
        for (const double one : simulated.busy) busy += one;
        EXPECT_NEAR(busy, work, 1e-6);
        for (const std::vector<TimedAction>& actions : simulated.ranks) EXPECT_EQ(actions.back().live, 0);
        const int peak = *std::max_element(simulated.peak_live.begin(), simulated.peak_live.end());
        const bool is_zero_bubble = schedule.splits_backward();
        EXPECT_LE(peak, !has_backward ? 1 : (is_zero_bubble ? p : m) * schedule.shape.num_chunks);
      }
    }
  }
  EXPECT_GT(num_schedules, 3000);
}

// Two stages, two microbatches, transfers of half a unit: every time by hand.
TEST(PipelineSimulator, TransfersTakeTheirTime) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, 2, 2);
  const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, {1, 1, 1}, 0.5));
  const auto times_of = [&](size_t rank) {
    std::vector<double> times;
    for (const TimedAction& timed : simulated.ranks[rank]) {
      if (is_communication(timed.action.kind)) continue;
      times.push_back(timed.start);
      times.push_back(timed.end);
    }
    return times;
  };
  EXPECT_EQ(times_of(1), (std::vector<double>{1.5, 2.5, 2.5, 4.5, 4.5, 5.5, 5.5, 7.5}));
  EXPECT_EQ(times_of(0), (std::vector<double>{0, 1, 1, 2, 5, 7, 8, 10}));
  EXPECT_EQ(simulated.makespan, 10);
  EXPECT_EQ(simulated.busy, (std::vector<double>{6, 6}));
}

TEST(PipelineSimulator, TransfersOfOneWayFollowOneAnother) {
  // Forwards leave at 1, 2, 3 and take 2 each: they arrive at 3, 5, 7.
  const PipelineSchedule schedule = with_communication(make_forward_schedule({2, 1, 3, StageOrder::kLoop}));
  const PipelineSimulation simulated = simulate_pipeline(schedule, equal_costs(schedule, {1, 0, 0}, 2));
  std::vector<double> starts;
  for (const TimedAction& timed : simulated.ranks[1]) {
    if (timed.action.kind == ActionKind::kForward) starts.push_back(timed.start);
  }
  EXPECT_EQ(starts, (std::vector<double>{3, 5, 7}));
}

TEST(PipelineSimulator, TheSlowestStageSetsThePace) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, 4, 16);
  PipelineCosts costs = equal_costs(schedule);
  costs.stages[2] = {2, 2, 2};
  const PipelineSimulation simulated = simulate_pipeline(schedule, costs);
  // Stage 2 begins after two forwards, waits once, from 6 to 7, for the first gradient from stage 3, works without a
  // pause from there, and two backwards follow its last.
  EXPECT_EQ(simulated.busy[2], 16 * 6);
  EXPECT_EQ(simulated.makespan, 2 + 16 * 6 + 1 + 2 * 2);
  EXPECT_EQ(simulated.bubble_time(), simulated.makespan - 16 * 3);
}

TEST(PipelineSimulator, ActivationsAreWeighedByStage) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, 2, 4);
  PipelineCosts costs = equal_costs(schedule);
  costs.activations = {10, 300};
  const PipelineSimulation simulated = simulate_pipeline(schedule, costs);
  EXPECT_EQ(simulated.peak_live, (std::vector<int>{2, 1}));
  EXPECT_EQ(simulated.peak_activations, (std::vector<double>{20, 300}));
  // A backward still holds what it frees at its end.
  for (const TimedAction& timed : simulated.ranks[1]) {
    if (timed.action.kind == ActionKind::kBackward) {
      EXPECT_EQ(timed.activations, 300);
      EXPECT_EQ(timed.live, 0);
    }
  }
}

TEST(PipelineSimulator, CostsOfOtherStagesAreRefused) {
  const PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kGpipe, 2, 2);
  EXPECT_THROW(simulate_pipeline(schedule, {}), InternalError);
  PipelineCosts costs = equal_costs(schedule);
  costs.activations = {1};
  EXPECT_THROW(simulate_pipeline(schedule, costs), InternalError);
  costs = equal_costs(schedule, {-1, 1, 1});
  EXPECT_THROW(simulate_pipeline(schedule, costs), InternalError);
}

}  // namespace
}  // namespace megalith
