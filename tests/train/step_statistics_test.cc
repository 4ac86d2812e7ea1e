// One vector and one exchange: what counts once, what is summed, averaged and compared over passes and ranks.
#include "train/step_statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "core/error.h"

namespace megalith {
namespace {

at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }

TEST(StepStatistics, ReduceOverPassesAndRanksByWhatTheySay) {
  const AxisSet everywhere = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
  ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
    const double rank = groups.rank, dp = groups.dp->rank();
    StepStatistics statistics({"lm loss", "z_loss"},
                              {{.name = "tokens", .layer = 3, .size = 2, .axes = everywhere},
                               {.name = "length", .reduce = ObservationReduce::kMean, .axes = Axis::kDp},
                               {.name = "amax", .reduce = ObservationReduce::kMax, .axes = everywhere},
                               {.name = "nobody's", .reduce = ObservationReduce::kMean, .axes = everywhere}},
                              groups, at::kCPU);
    int num_exchanges = 0;
    groups.world->set_trace_hook(
        [&](TracePhase phase, const CollectiveRecord&) { num_exchanges += phase == TracePhase::kStart ? 1 : 0; });
    for (const double pass : {1.0, 2.0}) {
      ModelOutput output;
      // The ranks of tp have the same losses.
      output.terms.push_back({.name = "lm loss", .sum = number(pass + dp), .weight = number(4), .objective = {}});
      output.observations = {{"tokens", 3, at::tensor({int64_t{1}, static_cast<int64_t>(rank)}, at::kLong)},
                             {"length", -1, number(10 * pass + dp)},
                             {"amax", -1, number(rank - pass)}};
      statistics.add(output);
    }
    statistics.set_gradient(at::tensor({rank, 0.5}, at::kDouble));
    statistics.vote(groups.rank == 1 ? 2 : groups.rank == 3 ? 1 : 0);
    statistics.exchange();
    EXPECT_EQ(statistics.gradient().sum().item<double>(), 8) << "on the device, before the host reads anything";
    EXPECT_TRUE(statistics.losses().empty());
    statistics.read();
    groups.world->set_trace_hook({});
    EXPECT_EQ(num_exchanges, 2) << "one of sums, and one because there is a maximum";

    ASSERT_EQ(statistics.losses().size(), 2u);
    EXPECT_EQ(statistics.losses()[0].sum, 1 + 2 + 2 + 3);
    EXPECT_EQ(statistics.losses()[0].weight, 16);
    EXPECT_EQ(statistics.losses()[1].mean(), 0);
    const std::vector<ObservedValues> observed = statistics.observed_values();
    EXPECT_EQ(observed[0].name, "tokens");
    EXPECT_EQ(observed[0].layer, 3);
    EXPECT_EQ(observed[0].values, (std::vector<double>{8, 2 * (0 + 1 + 2 + 3)}));
    EXPECT_EQ(observed[1].values, std::vector<double>{(10 + 20 + 11 + 21) / 4.0});
    EXPECT_EQ(observed[2].values, std::vector<double>{2});
    EXPECT_EQ(observed[3].values, std::vector<double>{0});
    EXPECT_EQ(statistics.observed()[0].values[1].item<double>(), 12);
    EXPECT_EQ(statistics.host_gradient()[0].item<double>(), 6);
    EXPECT_EQ(statistics.host_gradient()[1].item<double>(), 2);
    EXPECT_EQ(statistics.agreed_vote(), 2);
  });
}

TEST(StepStatistics, RefuseWhatNobodyAnnounced) {
  const Groups groups = Groups::single();
  StepStatistics statistics({"lm loss"}, {{.name = "tokens", .layer = 0, .size = 2}}, groups, at::kCPU);
  ModelOutput output;
  output.terms.push_back({.name = "loss", .sum = number(1), .weight = number(1), .objective = {}});
  EXPECT_THROW(statistics.add(output), InternalError);
  output.terms.clear();
  for (const Observation& wrong : {Observation{"tokens", 1, at::zeros({2})}, Observation{"tokens", 0, at::zeros({3})},
                                   Observation{"loads", 0, at::zeros({2})}}) {
    output.observations = {wrong};
    EXPECT_THROW(statistics.add(output), InternalError) << wrong.name;
  }
}

}  // namespace
}  // namespace megalith
