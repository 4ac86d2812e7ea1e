// The executor does what the simulator says: the same order, the same live graphs, the same times.
#include "parallel/pipeline/executor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "comm/thread_world.h"
#include "planner/pipeline_simulator.h"
#include "planner/schedules.h"

namespace megalith {
namespace {

using namespace testing;

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A stage that computes next to nothing and takes the time that it is given.
class TimedStage : public PipelineStage {
 public:
  TimedStage(DeferredGradients& deferred, const StageTimes& times, bool is_first, bool is_last)
      : deferred_(deferred), times_(times), is_first_(is_first), is_last_(is_last) {}

  std::vector<TensorSpec> inputs(int) const override {
    return is_first_ ? std::vector<TensorSpec>{} : std::vector<TensorSpec>{{"x", {1}, at::kFloat}};
  }

  StageResult forward(int, const Bundle& given) override {
    sleep_for(times_.forward);
    const at::Tensor x = is_first_ ? at::ones({1}).set_requires_grad(true) : given.at("x");
    const at::Tensor y = x * 2;
    y.register_hook([this](const at::Tensor& gradient) {
      sleep_for(times_.input_backward);
      const double seconds = times_.weight_backward;
      if (deferred_.is_deferring())
        deferred_.defer([seconds] { sleep_for(seconds); });
      else
        sleep_for(seconds);
      return gradient;
    });
    StageResult result;
    if (is_last_)
      result.objective = y.sum();
    else
      result.outputs.set("x", y);
    return result;
  }

 private:
  DeferredGradients& deferred_;
  StageTimes times_;
  bool is_first_, is_last_;
};

std::vector<std::vector<ActionRecord>> run_timed(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  const PipelineShape& shape = schedule.shape;
  std::vector<std::vector<ActionRecord>> records(static_cast<size_t>(shape.num_ranks));
  ThreadWorld(shape.num_ranks).run(Mesh({.pp = shape.num_ranks}), [&](Groups& groups) {
    const int rank = groups.pp->rank();
    DeferredGradients deferred;
    std::vector<std::unique_ptr<TimedStage>> stages;
    std::vector<PipelineStage*> parts;
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      const int stage = shape.stage_of(rank, chunk);
      stages.push_back(std::make_unique<TimedStage>(deferred, costs.stages[static_cast<size_t>(stage)], stage == 0,
                                                    stage + 1 == shape.num_stages()));
      parts.push_back(stages.back().get());
    }
    PipelineExecutor executor(*groups.pp, parts, &deferred, at::kCPU);
    groups.pp->barrier("start").wait();  // clocks begin together
    executor.run(schedule);
    records[static_cast<size_t>(rank)] = executor.records();
  });
  return records;
}

double makespan_of(const std::vector<std::vector<ActionRecord>>& records) {
  double end = 0;
  for (const auto& rank : records) {
    for (const ActionRecord& record : rank) {
      if (!is_communication(record.action.kind)) end = std::max(end, record.end_s);
    }
  }
  return end;
}

void expect_agreement(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  const PipelineSimulation simulated = simulate_pipeline(schedule, costs);
  // The quickest of many: the machine may be busy with other things.
  std::vector<std::vector<ActionRecord>> measured = run_timed(schedule, costs);
  for (int attempt = 1; attempt < 20 && makespan_of(measured) > 1.05 * simulated.makespan; ++attempt) {
    auto again = run_timed(schedule, costs);
    if (makespan_of(again) < makespan_of(measured)) measured = std::move(again);
  }
  const std::string what = described(schedule);
  EXPECT_NEAR(makespan_of(measured), simulated.makespan, 0.1 * simulated.makespan) << what;
  for (size_t rank = 0; rank < measured.size(); ++rank) {
    ASSERT_EQ(measured[rank].size(), simulated.ranks[rank].size()) << what;
    for (size_t i = 0; i < measured[rank].size(); ++i) {
      const ActionRecord& real = measured[rank][i];
      const TimedAction& planned = simulated.ranks[rank][i];
      const std::string where = what + " rank " + std::to_string(rank) + " " + planned.action.text();
      EXPECT_EQ(real.action, planned.action) << where;
      EXPECT_EQ(real.live, planned.live) << where;
      if (is_communication(real.action.kind)) continue;
      EXPECT_NEAR(real.start_s, planned.start, 0.1 * simulated.makespan) << where;
      EXPECT_NEAR(real.end_s, planned.end, 0.1 * simulated.makespan) << where;
    }
  }
}

TEST(PipelineExecutorAndSimulator, AgreeForEveryAlgorithm) {
  const StageTimes even{.forward = 0.02, .input_backward = 0.02, .weight_backward = 0.02};
  for (const PipelineSchedule& schedule :
       {complete_schedule(PipelineAlgorithm::kGpipe, 3, 4), complete_schedule(PipelineAlgorithm::k1f1b, 3, 5),
        complete_schedule(PipelineAlgorithm::k1f1b, 2, 4, 2), complete_schedule(PipelineAlgorithm::k1f1b, 3, 3, 3),
        complete_schedule(PipelineAlgorithm::kZeroBubble, 3, 5),
        complete_schedule(PipelineAlgorithm::kZeroBubbleV, 3, 6)}) {
    expect_agreement(schedule, equal_costs(schedule, even));
  }
}

TEST(PipelineExecutorAndSimulator, AgreeWithUnevenStages) {
  for (const PipelineAlgorithm algorithm : {PipelineAlgorithm::k1f1b, PipelineAlgorithm::kZeroBubbleV}) {
    const PipelineSchedule schedule = complete_schedule(algorithm, 2, 4);
    PipelineCosts costs = equal_costs(schedule);
    for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
      const double factor = 1 + 0.5 * static_cast<double>(stage % 3);
      costs.stages[stage] = {0.012 * factor, 0.018 * factor, 0.01 * factor};
    }
    expect_agreement(schedule, costs);
  }
}

}  // namespace
}  // namespace megalith
