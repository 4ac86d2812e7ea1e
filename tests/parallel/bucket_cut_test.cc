// Buckets whose runs are cut between matrices: the arithmetic exactly, and that nothing else changes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "comm/thread_world.h"
#include "parallel/buckets.h"
#include "parallel/fsdp.h"
#include "parallel/grad_buffer.h"
#include "parallel/sharded_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

std::vector<std::unique_ptr<Parameter>> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<std::unique_ptr<Parameter>> params;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Placement placement = Placement::whole("w" + std::to_string(i), {sizes[i], 1});
    placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
    params.push_back(std::make_unique<Parameter>("w" + std::to_string(i), placement,
                                                 ParameterOptions{.role = ParameterRole::kMatrix}));
    params.back()->data().copy_(at::arange(sizes[i]).view({-1, 1}) + 100 * static_cast<int64_t>(i));
  }
  return params;
}

std::vector<Parameter*> list_of(const std::vector<std::unique_ptr<Parameter>>& params) {
  std::vector<Parameter*> all;
  for (const auto& param : params) all.push_back(param.get());
  return all;
}

BucketCut between_matrices(const Parameter& /*parameter*/) { return BucketCut::kBetweenMatrices; }

BucketRules rules_for(int64_t num_runs, int64_t bucket_elements, BucketCutFunction cut = between_matrices) {
  const auto runs = [num_runs](const AxisSet&) { return num_runs; };
  return {.bucket_elements = bucket_elements, .bucket_multiple = runs, .num_runs = runs, .cut = std::move(cut)};
}

std::vector<int64_t> offsets(const Bucket& bucket) {
  std::vector<int64_t> found;
  for (const BucketMember& member : bucket.members) found.push_back(member.offset);
  return found;
}

constexpr int64_t kNoBucketEnd = 1 << 30;

// The largest first, each to the run with least in it; within a run in the order of backward, which is the reverse of
// registration: sizes 6, 2, 3, 5 come as 5, 3, 2, 6 and go to runs 1, 1, 0, 0.
TEST(BucketCut, DealsParametersToRunsOfEqualSize) {
  const auto params = parameters_of({6, 2, 3, 5});
  const BucketPlan plan = plan_buckets(list_of(params), rules_for(2, kNoBucketEnd));
  ASSERT_EQ(plan.buckets.size(), 1u);
  const Bucket& bucket = plan.buckets[0];
  EXPECT_EQ(bucket.cut, BucketCut::kBetweenMatrices);
  EXPECT_EQ(bucket.range, (FlatRange{0, 16}));
  EXPECT_EQ(bucket.members[0].parameter->name(), "w3");
  EXPECT_EQ(offsets(bucket), (std::vector<int64_t>{8, 13, 0, 2}));
}

// 7, 7 and 6 in two runs leave 6 of 20 elements empty, more than an eighth: the bucket takes the next parameter too,
// which fills them.
TEST(BucketCut, ABucketStaysOpenUntilItsRunsAreEven) {
  const auto params = parameters_of({4, 4, 6, 6, 7, 7});  // backward: 7, 7, 6, 6, 4, 4
  const BucketPlan plan = plan_buckets(list_of(params), rules_for(2, 20));
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].members.size(), 4u);
  EXPECT_EQ(plan.buckets[0].range, (FlatRange{0, 26}));
  EXPECT_EQ(offsets(plan.buckets[0]), (std::vector<int64_t>{0, 13, 7, 20}));
  // The second begins where the first ends.
  EXPECT_EQ(plan.buckets[1].range, (FlatRange{26, 34}));
  EXPECT_EQ(offsets(plan.buckets[1]), (std::vector<int64_t>{26, 30}));
}

// One element more than an eighth of padding is too much; an eighth is not.
TEST(BucketCut, PaddingStaysWithinAnEighth) {
  const auto fits = parameters_of({7, 9});      // runs of 9: 2 of 16 empty
  const auto too_much = parameters_of({6, 8});  // runs of 8: 2 of 14
  EXPECT_EQ(plan_buckets(list_of(fits), rules_for(2, kNoBucketEnd)).buckets.at(0).cut, BucketCut::kBetweenMatrices);
  const BucketPlan plan = plan_buckets(list_of(too_much), rules_for(2, kNoBucketEnd));
  EXPECT_EQ(plan.buckets.at(0).cut, BucketCut::kAnywhere);
  EXPECT_EQ(plan.buffers.at(0).size, 14);
}

// What has nothing left to wait for is cut anywhere, as it would be without the rule: one matrix over many ranks.
TEST(BucketCut, FewMatricesOverManyRanksAreCutAnywhere) {
  const auto params = parameters_of({100, 10});
  const BucketPlan plan = plan_buckets(list_of(params), rules_for(4, 50));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].cut, BucketCut::kAnywhere);
  EXPECT_EQ(plan.buckets[0].range, (FlatRange{0, 112}));
  EXPECT_EQ(offsets(plan.buckets[0]), (std::vector<int64_t>{0, 10}));
}

TEST(BucketCut, ParametersThatMayBeCutHaveBuffersOfTheirOwn) {
  const auto params = parameters_of({8, 5, 8});
  const auto cut = [](const Parameter& one) {
    return one.name() == "w1" ? BucketCut::kAnywhere : BucketCut::kBetweenMatrices;
  };
  const BucketPlan plan = plan_buckets(list_of(params), rules_for(2, kNoBucketEnd, cut));
  ASSERT_EQ(plan.buffers.size(), 2u);
  EXPECT_EQ(plan.buffers[0].cut, BucketCut::kBetweenMatrices);
  EXPECT_EQ(plan.buffers[0].size, 16);
  EXPECT_EQ(plan.buffers[1].size, 6);
  // Without anybody who asks, the plan is the one that there always was.
  const BucketPlan plain = plan_buckets(list_of(params), rules_for(2, kNoBucketEnd, nullptr));
  ASSERT_EQ(plain.buffers.size(), 1u);
  EXPECT_EQ(offsets(plain.buckets.at(0)), (std::vector<int64_t>{0, 8, 13}));
}

// Whatever the sizes and the ranks: every parameter in one run, no two over each other, all ranks agree.
TEST(BucketCut, NoParameterLiesInTwoRuns) {
  const std::vector<int64_t> sizes = {13, 200, 64, 65, 7, 90, 130, 128, 1, 77, 300, 19, 64, 64, 210, 33};
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t bucket_elements : {int64_t{1}, int64_t{400}, kNoBucketEnd}) {
      std::map<std::string, int> owners;
      std::map<std::string, BucketCut> cut;
      std::vector<int64_t> owned(static_cast<size_t>(ranks));
      int num_even = 0, num_buckets = 0;
      std::mutex mutex;
      ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
        const auto params = parameters_of(sizes);
        const ShardedGradBuffer buffer(list_of(params), groups,
                                       {.gradients = {.bucket_elements = bucket_elements}, .cut = between_matrices});
        const auto axes = [](const AxisSet& partial, const Groups& all) { return reduction_groups(partial, all); };
        const BucketPlan plan = plan_buckets(
            list_of(params), {.bucket_elements = bucket_elements,
                              .alignment = 64,
                              .bucket_multiple = [&](const AxisSet& a) { return 64 * axes(a, groups).shard->size(); },
                              .num_runs = [&](const AxisSet& a) -> int64_t { return axes(a, groups).shard->size(); },
                              .cut = between_matrices});
        const std::lock_guard lock(mutex);
        ASSERT_EQ(buffer.runs().size(), sizes.size());
        for (const OwnedPart& part : buffer.parts()) {
          owned[static_cast<size_t>(groups.rank)] += part.range->size();
          owners[part.parameter->name()] += 1;
        }
        for (const Bucket& bucket : plan.buckets) {
          ++num_buckets;
          num_even += bucket.cut == BucketCut::kBetweenMatrices ? 1 : 0;
          for (const BucketMember& member : bucket.members) cut[member.parameter->name()] = bucket.cut;
          if (bucket.cut == BucketCut::kAnywhere) continue;
          const int64_t run = bucket.range.size() / ranks;
          for (const BucketMember& member : bucket.members) {
            const int64_t begin = member.offset - bucket.range.begin;
            const int64_t end = begin + member.parameter->placement().num_local_elements();
            EXPECT_EQ(begin / run, (end - 1) / run) << member.parameter->name() << " over " << ranks;
          }
        }
      });
      int64_t total = 0;
      for (const int64_t size : sizes) total += size;
      EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), int64_t{0}), total);
      // All but the last bucket of each rank's plan are even; one bucket for all is, over a few ranks.
      EXPECT_GE(num_even, num_buckets - ranks);
      if (bucket_elements == kNoBucketEnd && ranks <= 4) {
        EXPECT_EQ(num_even, num_buckets) << ranks;
      }
      for (const auto& [name, count] : owners) {
        if (cut.at(name) == BucketCut::kBetweenMatrices) {
          EXPECT_EQ(count, 1) << name;
        }
      }
      // State is divided about evenly: each run is its bucket's share and an eighth at most.
      if (bucket_elements == kNoBucketEnd && ranks <= 4) {
        for (const int64_t one : owned) EXPECT_LE(one, (total + 64 * 16) * 9 / 8 / ranks);
      }
    }
  }
}

// What ranks exchange is the same whichever way the buckets are cut.
TEST(BucketCut, GradientsAndParametersAreThoseOfReplicatedTraining) {
  const std::vector<int64_t> sizes = {13, 200, 64, 65, 7, 90, 130, 128};
  for (const int ranks : {2, 4}) {
    ThreadWorld(ranks).run(Mesh({.dp = ranks, .dp_replicate = ranks == 4 ? 2 : 1}), [&](Groups& groups) {
      const auto expected = parameters_of(sizes), params = parameters_of(sizes);
      GradBuffer replicated(list_of(expected), groups, {});
      ShardedGradBuffer sharded(list_of(params), groups,
                                {.gradients = {.bucket_elements = 100}, .cut = between_matrices});
      for (auto* data : {static_cast<DataParallel*>(&replicated), static_cast<DataParallel*>(&sharded)}) {
        data->begin_step();
        data->begin_microbatch(true);
        for (const auto& one : data == &replicated ? expected : params) {
          one->expect_contribution();
          one->add_grad(one->data() % 7 + groups.rank);
        }
        data->finish_step();
        for (const OwnedPart& part : data->parts()) part.model.sub_(part.grad * 0.5);
        data->publish();
        data->wait_for_parameters();
      }
      for (size_t i = 0; i < params.size(); ++i) {
        EXPECT_TENSOR_NEAR(params[i]->data(), expected[i]->data(), {.what = params[i]->name()});
      }
    });
  }
}

// What ParameterRuns say is what the ranks own, under both kinds of sharding.
TEST(ParameterRuns, AreTheRangesOfTheParts) {
  const std::vector<int64_t> sizes = {13, 200, 64, 65, 7};
  for (const bool is_fsdp : {false, true}) {
    for (const bool keeps_whole : {false, true}) {
      if (is_fsdp && keeps_whole) continue;
      ThreadWorld(3).run(Mesh({.dp = 3}), [&](Groups& groups) {
        const auto params = parameters_of(sizes);
        std::unique_ptr<DataParallel> data;
        if (is_fsdp) {
          data = std::make_unique<Fsdp>(list_of(params), std::vector<Block>{}, groups, FsdpOptions{});
        } else {
          ShardedBufferOptions options;
          if (keeps_whole) options.cut = between_matrices;
          data = std::make_unique<ShardedGradBuffer>(list_of(params), groups, options);
        }
        std::map<const Parameter*, FlatRange> owned;
        for (const OwnedPart& part : data->parts()) owned[part.parameter] = *part.range;
        ASSERT_EQ(data->runs().size(), sizes.size());
        for (const ParameterRuns& runs : data->runs()) {
          const FlatRange range = runs.of(groups.rank);
          EXPECT_EQ(range.size(), owned.contains(runs.parameter) ? owned[runs.parameter].size() : 0);
          if (range.size() > 0) {
            EXPECT_EQ(range, owned[runs.parameter]) << runs.parameter->name();
          }
          int64_t total = 0;
          for (int r = 0; r < 3; ++r) total += runs.of(r).size();
          EXPECT_EQ(total, runs.parameter->placement().num_local_elements());
        }
      });
    }
  }
}

}  // namespace
}  // namespace megalith
