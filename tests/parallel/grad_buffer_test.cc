// Gradient buckets: views, order, flushing, and the sum over data-parallel ranks.
#include "parallel/grad_buffer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/groups.h"
#include "comm/thread_world.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

std::unique_ptr<Parameter> make_parameter(const std::string& name, std::vector<int64_t> shape) {
  return std::make_unique<Parameter>(name, Placement::whole(name, std::move(shape)), ParameterOptions{});
}

// One contribution as a Function sends it: announced in forward, delivered in backward.
void contribute(Parameter& param, double value) {
  param.expect_contribution();
  param.add_grad(at::full(param.value().sizes(), value, at::kFloat));
}

TEST(GradBuffer, GradientsAreNeighbouringViewsLastParameterFirst) {
  const Groups groups = Groups::single();
  const auto a = make_parameter("a", {2, 3}), b = make_parameter("b", {5});
  GradBuffer buffer({a.get(), b.get()}, groups.dp_cp, {});
  EXPECT_EQ(buffer.num_bytes(), (6 + 5) * 4);
  EXPECT_EQ(b->grad().data_ptr<float>() + 5, a->grad().data_ptr<float>());
}

TEST(GradBuffer, AFirstContributionOverwritesWhatTheLastStepLeft) {
  const Groups groups = Groups::single();
  const auto a = make_parameter("a", {4});
  GradBuffer buffer({a.get()}, groups.dp_cp, {});
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
  GradBuffer buffer({a.get(), unused.get()}, groups.dp_cp, {});
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
    GradBuffer buffer(pointers, groups.dp_cp, {.bucket_elements = 1});
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

}  // namespace
}  // namespace megalith
