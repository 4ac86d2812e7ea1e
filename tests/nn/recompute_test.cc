// Recomputation of a body: the same bits, less memory, and readiness in time.
#include "nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>

#include "comm/groups.h"
#include "nn/linear.h"
#include "support/kept_bytes.h"
#include "support/module_tools.h"

namespace megalith {
namespace {

constexpr int64_t kWidth = 6;

// Counts how often a parameter becomes ready, with how many contributions in its buffer by then.
struct ReadyCount {
  explicit ReadyCount(const Module& module) {
    module.for_each_parameter([this](Parameter& parameter) {
      parameter.set_ready_hook([this](Parameter& ready) { ++times[ready.name()]; });
    });
  }
  std::map<std::string, int> times;
};

struct Toy {
  explicit Toy(const std::string& name, bool has_bias = true)
      : linear({.groups = &groups, .dtype = at::kDouble, .kernels = Kernels::kReference}, name, kWidth, kWidth,
               {.has_bias = has_bias}) {
    test::load(linear, test::golden_weights(linear, at::kDouble));
    test::attach_gradients(linear);
  }
  BlockBody body() {
    return [this](const std::vector<at::Tensor>& x) {
      ++num_runs;
      return std::vector<at::Tensor>{linear.forward(x[0]).tanh()};
    };
  }
  std::vector<at::Tensor> recompute(const std::vector<at::Tensor>& inputs) {
    return recomputed(body(), inputs, linear.parameters());
  }
  Groups groups = Groups::single();
  Linear linear;
  int num_runs = 0;
};

at::Tensor input(bool requires_grad = true) {
  at::Tensor x = at::arange(4 * kWidth, at::kDouble).view({4, kWidth}).sin();
  return x.set_requires_grad(requires_grad);
}

void expect_same_gradients(const Toy& a, const Toy& b) {
  const test::TensorMap expected = test::gradients_of(b.linear);
  for (const auto& [name, gradient] : test::gradients_of(a.linear)) {
    EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name;
  }
}

TEST(Recomputed, GivesTheSameBitsAndRunsTheBodyTwice) {
  Toy plain("a"), again("a");
  const at::Tensor x = input(), y = input();
  const at::Tensor expected = plain.body()({x})[0], actual = again.recompute({y})[0];
  EXPECT_TRUE(at::equal(expected, actual));
  EXPECT_EQ(again.num_runs, 1);
  expected.square().sum().backward();
  actual.square().sum().backward();
  EXPECT_EQ(again.num_runs, 2);
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
  expect_same_gradients(again, plain);
}

TEST(Recomputed, WithoutAGraphItIsTheBody) {
  Toy toy("a");
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(toy.recompute({input()})[0].requires_grad());
  }
  toy.linear.for_each_parameter([](Parameter& parameter) { parameter.set_trainable(false); });
  EXPECT_FALSE(toy.recompute({input(false)})[0].requires_grad());
  EXPECT_EQ(toy.num_runs, 2);
}

TEST(Recomputed, ParametersGetGradientsWhereNoInputDoes) {
  Toy plain("a"), again("a");
  plain.body()({input(false)})[0].sum().backward();
  again.recompute({input(false)})[0].sum().backward();
  expect_same_gradients(again, plain);
}

TEST(Recomputed, SlotsMayBeEmptyAndOutputsUnused) {
  Toy toy("a");
  ReadyCount ready(toy.linear);
  const at::Tensor x = input(), z = input();
  const BlockBody body = [&toy](const std::vector<at::Tensor>& in) {
    EXPECT_FALSE(in[1].defined());
    return std::vector<at::Tensor>{{}, toy.linear.forward(in[0]), in[2] * 2, {}};
  };
  const auto outputs = recomputed(body, {x, {}, z}, toy.linear.parameters());
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_FALSE(outputs[0].defined() || outputs[3].defined());
  outputs[2].sum().backward();  // nothing reaches the linear
  EXPECT_TRUE(at::equal(z.grad(), at::full_like(z, 2)));
  EXPECT_FALSE(x.grad().defined());
  // A buffer without a gradient is not ready; the end of the step zeroes it.
  for (const Parameter* parameter : toy.linear.parameters()) EXPECT_TRUE(parameter->is_grad_empty());
}

TEST(Recomputed, TheInputsCanWaitElsewhere) {
  Toy plain("a"), again("a");
  const at::Tensor x = input(), y = input();
  plain.body()({x})[0].square().sum().backward();
  int num_kept = 0, num_restored = 0;
  const auto outputs = recomputed(again.body(), {y}, again.linear.parameters(), [&](const std::vector<at::Tensor>& in) {
    ++num_kept;
    EXPECT_FALSE(in[0].requires_grad());
    return std::vector<Kept>{Kept::computed([&num_restored, elsewhere = in[0].clone()] {
      ++num_restored;
      return elsewhere;
    })};
  });
  outputs[0].square().sum().backward();
  EXPECT_EQ(num_kept, 1);
  EXPECT_EQ(num_restored, 1);
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
  expect_same_gradients(again, plain);
}

TEST(Recomputed, NestedBodiesGiveTheSameBits) {
  Toy plain("a"), again("a");
  const at::Tensor x = input(), y = input();
  const auto twice = [](Toy& toy, bool is_inner_recomputed) -> BlockBody {
    return [&toy, is_inner_recomputed](const std::vector<at::Tensor>& in) {
      const std::vector<at::Tensor> inner = is_inner_recomputed ? toy.recompute(in) : toy.body()(in);
      return toy.body()({inner[0] + in[0]});
    };
  };
  ReadyCount ready(again.linear);
  twice(plain, false)({x})[0].square().sum().backward();
  recomputed(twice(again, true), {y}, again.linear.parameters())[0].square().sum().backward();
  EXPECT_EQ(again.num_runs, 5);  // both once, both again, and the inner one a third time
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
  expect_same_gradients(again, plain);
  for (const Parameter* parameter : again.linear.parameters()) EXPECT_EQ(ready.times[parameter->name()], 1);
}

// One parameter in two blocks: its gradient is complete when the first block's backward, which comes last, is done. At
// the second block's it must not be sent.
TEST(Recomputed, ATiedParameterIsReadyAfterItsLastBlock) {
  for (const bool is_first_recomputed : {false, true}) {
    for (const bool is_second_recomputed : {false, true}) {
      Toy plain("a"), toy("a");
      const at::Tensor x = input(), y = input();
      plain.body()({plain.body()({x})[0]})[0].square().sum().backward();

      const auto run = [&toy](bool is_recomputed, const at::Tensor& in) {
        return (is_recomputed ? toy.recompute({in}) : toy.body()({in}))[0];
      };
      // A bucket would be reduced with the buffer as it is when the hook is called.
      std::map<std::string, at::Tensor> seen;
      std::map<std::string, int> times;
      toy.linear.for_each_parameter([&](Parameter& parameter) {
        parameter.set_ready_hook([&](Parameter& ready) {
          ++times[ready.name()];
          seen[ready.name()] = ready.grad().clone();
        });
      });
      run(is_second_recomputed, run(is_first_recomputed, y)).square().sum().backward();
      for (Parameter* parameter : toy.linear.parameters()) {
        EXPECT_EQ(times[parameter->name()], 1) << parameter->name();
        EXPECT_TRUE(at::equal(seen[parameter->name()], parameter->grad())) << parameter->name();
      }
      expect_same_gradients(toy, plain);
    }
  }
}

TEST(Recomputed, ReadinessWaitsForTheLastMicrobatch) {
  Toy toy("a");
  ReadyCount ready(toy.linear);
  for (const bool is_last : {false, false, true}) {
    toy.linear.for_each_parameter([&](Parameter& parameter) { parameter.set_last_microbatch(is_last); });
    toy.recompute({input()})[0].sum().backward();
    EXPECT_EQ(ready.times.empty(), !is_last);
  }
  for (const Parameter* parameter : toy.linear.parameters()) EXPECT_EQ(ready.times[parameter->name()], 1);
}

TEST(Recomputed, ALinearCanComputeItsInputAgain) {
  const Groups groups = Groups::single();
  const LayerContext context{.groups = &groups, .dtype = at::kDouble, .kernels = Kernels::kReference};
  Linear keeps(context, "a", kWidth, kWidth, {}), restores(context, "a", kWidth, kWidth, {});
  for (Linear* linear : {&keeps, &restores}) {
    test::load(*linear, test::golden_weights(*linear, at::kDouble));
    test::attach_gradients(*linear);
  }
  const at::Tensor x = input(), y = input();
  keeps.forward(x).square().sum().backward();
  int num_calls = 0;
  const Kept again = Kept::computed([&num_calls, kept = y.detach().clone()] {
    ++num_calls;
    return kept;
  });
  restores.forward({y, again}).square().sum().backward();
  EXPECT_EQ(num_calls, 1);
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
  EXPECT_TRUE(at::equal(keeps.weight().grad(), restores.weight().grad()));
  Linear on_meta({.groups = &groups, .dtype = at::kDouble, .device = at::kMeta}, "a", kWidth, kWidth, {});
  const Kept nothing = Kept::computed([]() -> at::Tensor { return {}; });
  const auto bytes = [&](const Kept& kept) {
    return test::kept_bytes({4, kWidth}, at::kDouble, [&](const at::Tensor& in) {
      return on_meta.forward({in, kept});
    });
  };
  EXPECT_EQ(bytes(nothing), 0);
  EXPECT_EQ(bytes({}), 4 * kWidth * 8);
}

}  // namespace
}  // namespace megalith
