// Gradient buckets: views, order, flushing, and the sum over data-parallel ranks.
#include "parallel/grad_buffer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "parallel/data_parallel_options.h"
#include "parallel/sharded_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

std::unique_ptr<Parameter> make_parameter(const std::string& name, std::vector<int64_t> shape) {
  Placement placement = Placement::whole(name, std::move(shape));
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  return std::make_unique<Parameter>(name, placement, ParameterOptions{});
}

// One contribution as a Function sends it: announced in forward, delivered in backward.
void contribute(Parameter& param, double value) {
  param.expect_contribution();
  param.add_grad(at::full(param.value().sizes(), value, param.grad_dtype()));
}

TEST(GradBuffer, GradientsAreNeighbouringViewsLastParameterFirst) {
  const Groups groups = Groups::single();
  const auto a = make_parameter("a", {2, 3}), b = make_parameter("b", {5});
  GradBuffer buffer({a.get(), b.get()}, groups, {});
  EXPECT_EQ(buffer.gradient_bytes(), (6 + 5) * 4);
  EXPECT_EQ(b->grad().data_ptr<float>() + 5, a->grad().data_ptr<float>());
}

TEST(GradBuffer, AFirstContributionOverwritesWhatTheLastStepLeft) {
  const Groups groups = Groups::single();
  const auto a = make_parameter("a", {4});
  GradBuffer buffer({a.get()}, groups, {});
  for (const double value : {1.0, 10.0}) {
    buffer.begin_step();
    for (const bool is_last : {false, true}) {
      buffer.begin_microbatch(is_last);
      contribute(*a, value);
    }
    buffer.finish_step();
    EXPECT_TENSOR_NEAR(a->grad(), at::full({4}, 2 * value), {.what = "sum of two microbatches"});
  }
}

TEST(GradBuffer, AParameterWithoutContributionGetsZeros) {
  const Groups groups = Groups::single();
  const auto a = make_parameter("a", {3}), unused = make_parameter("unused", {2});
  GradBuffer buffer({a.get(), unused.get()}, groups, {});
  unused->grad().fill_(7);
  buffer.begin_step();
  buffer.begin_microbatch(true);
  contribute(*a, 1);
  buffer.finish_step();
  EXPECT_TENSOR_NEAR(unused->grad(), at::zeros({2}), {.what = "unused"});
}

// Ranks deliver in different orders, and one rank misses a parameter altogether: buckets still go out in one order (the
// thread back end would name a difference), and every rank ends with the sum.
TEST(GradBuffer, BucketsAreReducedInOneOrderWhateverTheOrderOfArrival) {
  constexpr int kRanks = 3, kParams = 5;
  ThreadWorld(kRanks).run(Mesh({.dp = kRanks}), [&](Groups& groups) {
    std::vector<std::unique_ptr<Parameter>> params;
    std::vector<Parameter*> pointers;
    for (int i = 0; i < kParams; ++i) {
      params.push_back(make_parameter(fmt::format("p{}", i), {i + 1, 2}));
      pointers.push_back(params.back().get());
    }
    // Every parameter closes a bucket of its own.
    GradBuffer buffer(pointers, groups, {.bucket_elements = 1});
    buffer.begin_step();
    buffer.begin_microbatch(true);
    for (int k = 0; k < kParams; ++k) {
      const int i = (k * 2 + groups.rank) % kParams;
      if (groups.rank == 1 && i == 3) continue;
      contribute(*pointers[static_cast<size_t>(i)], 10 * groups.rank + i);
    }
    buffer.finish_step();
    for (int i = 0; i < kParams; ++i) {
      const double sum = i == 3 ? (0 + 3) + (20 + 3) : (0 + i) + (10 + i) + (20 + i);
      EXPECT_TENSOR_NEAR(params[static_cast<size_t>(i)]->grad(), at::full({i + 1, 2}, sum),
                         {.what = fmt::format("p{} on rank {}", i, groups.rank)});
    }
  });
}

// With overlap a bucket leaves as soon as it and those before it are complete; without, all leave at the end.
TEST(GradBuffer, OverlapLaunchesFromBackward) {
  for (const bool overlap : {false, true}) {
    ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
      std::vector<std::string> launched;
      groups.dp_cp->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
        if (phase == TracePhase::kStart) launched.push_back(record.label);
      });
      const auto a = make_parameter("a", {4}), b = make_parameter("b", {4}), c = make_parameter("c", {4});
      GradBuffer buffer({a.get(), b.get(), c.get()}, groups, {.bucket_elements = 1, .overlap = overlap});
      buffer.begin_step();
      for (const bool is_last : {false, true}) {
        buffer.begin_microbatch(is_last);
        const std::vector<std::string> none;
        contribute(*b, 1);
        EXPECT_EQ(launched, none);  // bucket 0, that of c, is not complete
        contribute(*c, 1);
        EXPECT_EQ(launched, overlap && is_last ? (std::vector<std::string>{"grad bucket 0", "grad bucket 1"}) : none);
      }
      buffer.finish_step();
      EXPECT_EQ(launched.size(), 3u);
      groups.dp_cp->set_trace_hook({});
    });
  }
}

// The buckets of two dtypes leave in the order in which backward completes them, not one buffer after the other.
TEST(GradBuffer, BucketsOfSeveralBuffersLeaveInTheOrderOfBackward) {
  const auto narrow = [](const std::string& name) {
    return std::make_unique<Parameter>(name, Placement::whole(name, {4}), ParameterOptions{.dtype = at::kBFloat16});
  };
  const auto a = make_parameter("a", {4}), c = make_parameter("c", {4});
  const auto b = narrow("b"), d = narrow("d");
  const BucketPlan plan = plan_buckets({a.get(), b.get(), c.get(), d.get()}, {.bucket_elements = 1});
  std::string order;
  for (const Bucket& bucket : plan.buckets) order += bucket.members.at(0).parameter->name();
  EXPECT_EQ(order, "dcba");
  EXPECT_EQ(plan.buffers.size(), 2u);
}

// What each rank sends is rounded to bf16 once, and so is the sum; accumulation before is in fp32. fp64 is there for
// exactness and travels as it is, and where nothing travels nothing is rounded.
TEST(GradBuffer, ReductionInBf16RoundsWhatTravels) {
  constexpr double kValue = 1.0 + 1.0 / 512;  // between two bf16 numbers
  for (const int ranks : {1, 2}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (const bool is_sharded : {false, true}) {
        ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
          Placement placement = Placement::whole("a", {200});
          placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
          Parameter param("a", placement, {.dtype = dtype});
          const GradBufferOptions options{.reduce_in_bf16 = true};
          std::unique_ptr<DataParallel> data;
          if (is_sharded) {
            data = std::make_unique<ShardedGradBuffer>(std::vector<Parameter*>{&param}, groups,
                                                       ShardedBufferOptions{.gradients = options});
          } else {
            data = std::make_unique<GradBuffer>(std::vector<Parameter*>{&param}, groups, options);
          }
          data->begin_step();
          for (const bool is_last : {false, true}) {
            data->begin_microbatch(is_last);
            contribute(param, (groups.rank + 1) * kValue);
          }
          data->finish_step();
          double expected = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const double sent = 2 * (rank + 1) * kValue;
            const bool is_rounded = ranks > 1 && dtype == at::kFloat;
            expected += is_rounded ? static_cast<double>(c10::BFloat16(static_cast<float>(sent))) : sent;
          }
          if (ranks > 1 && dtype == at::kFloat) expected = c10::BFloat16(static_cast<float>(expected));
          ASSERT_FALSE(data->parts().empty());
          for (const OwnedPart& part : data->parts()) {
            EXPECT_TRUE((part.grad == expected).all().item<bool>())
                << ranks << " ranks, " << c10::toString(dtype) << (is_sharded ? ", sharded" : "");
          }
        });
      }
    }
  }
}

// A microbatch's gradient is computed in fp32 and its sum with the buffer rounded once; ranks are summed in bf16.
TEST(NarrowGradients, AreRoundedWhereAnEmulationInFloatRoundsThem) {
  constexpr int64_t kRanks = 2, kMicrobatches = 3, kCount = 70001;
  const auto contribution = [](int64_t rank, int64_t microbatch) {
    const at::Tensor i = at::arange(kCount, at::kDouble);
    return (at::sin(0.37 * i * i + static_cast<double>(7 * rank + microbatch)) * at::exp(3 * at::cos(1.7 * i)))
        .to(at::kFloat);
  };
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); };
  at::Tensor expected;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    at::Tensor sum = rounded(contribution(rank, 0));
    for (int64_t m = 1; m < kMicrobatches; ++m) sum = rounded(sum + contribution(rank, m));
    expected = expected.defined() ? rounded(expected + sum) : sum;
  }
  for (const auto& [name, options] : std::map<std::string, DataParallelOptions>{
           {"replicated", {}}, {"ZeRO-1", {.use_distributed_optimizer = true}}, {"FSDP", {.use_torch_fsdp2 = true}}}) {
    SCOPED_TRACE(name);
    ThreadWorld(kRanks).run(Mesh({.dp = kRanks}), [&](Groups& groups) {
      Placement placement = Placement::whole("weight", {kCount});
      placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
      Parameter param("weight", placement, {.dtype = at::kBFloat16, .init = Init::constant(1)});
      DataParallelOptions narrow = options;
      narrow.main_grads_dtype = GradDtype::kBf16;
      const auto data = make_data_parallel({&param}, groups, narrow);
      EXPECT_LE(data->gradient_bytes(), 2 * kCount + 512);
      data->begin_step();
      for (int64_t m = 0; m < kMicrobatches; ++m) {
        data->begin_microbatch(m + 1 == kMicrobatches);
        param.expect_contribution();
        param.add_grad(contribution(groups.rank, m));
      }
      data->finish_step();
      ASSERT_EQ(data->parts().size(), 1u);
      const OwnedPart& part = data->parts()[0];
      const FlatRange range = part.range.value_or(FlatRange{0, kCount});
      ASSERT_EQ(part.grad.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(part.grad.to(at::kFloat).view({-1}), expected.narrow(0, range.begin, range.size())));
    });
  }
}

}  // namespace
}  // namespace megalith
