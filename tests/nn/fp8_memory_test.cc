// Delayed scaling: the rule of the scales, when histories move on, and which ranks agree.
#include "nn/fp8_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/thread_world.h"
#include "nn/fp8_recipe.h"
#include "nn/linear.h"
#include "support/layer_tools.h"

namespace megalith {
namespace {

using namespace test;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A tensor's scale by Transformer Engine's documentation, in plain numbers.
struct PlainHistory {
  DelayedScaling how;
  double largest = 448, scale = 1;
  std::vector<double> amaxes = {};

  void see(double amax) {
    amaxes.insert(amaxes.begin(), amax);
    amaxes.resize(static_cast<size_t>(how.history_length));
    double chosen = amaxes[0];
    if (how.takes_largest) chosen = *std::max_element(amaxes.begin(), amaxes.end());
    if (chosen > 0 && std::isfinite(chosen)) scale = largest / chosen / std::pow(2.0, static_cast<double>(how.margin));
  }
};

// One pass of the layer `number`, forward and backward, that sees these.
void pass(Fp8Memory& memory, int64_t number, double forward, double backward, const Groups& groups) {
  memory.begin_forward(0);
  memory.record(number, OperandRole::kInput, at::scalar_tensor(forward, at::kDouble));
  memory.end_forward(0, groups);
  memory.begin_backward(0);
  memory.record(number, OperandRole::kGradient, at::scalar_tensor(backward, at::kDouble));
  memory.end_backward(0, groups);
}

TEST(Fp8Memory, ScalesFollowThePastByTransformerEnginesRule) {
  const Groups groups = Groups::single();
  for (const DelayedScaling& how : {DelayedScaling{}, DelayedScaling{.history_length = 3}, DelayedScaling{.margin = 2},
                                    DelayedScaling{.history_length = 3, .takes_largest = true, .margin = 1}}) {
    Fp8Memory memory(how, 57344, true);
    const int64_t layer = memory.add_layer({.name = "a", .dtype = at::kDouble});
    PlainHistory input{how}, gradient{how, 57344};
    for (const double seen : {2.0, 8.0, 0.0, 0.25, kInf, 3.0, 1e-3, 0.0, 0.0, 0.0, 5.0}) {
      EXPECT_EQ(memory.scale(layer, OperandRole::kInput).item<double>(), input.scale);
      EXPECT_EQ(memory.scale(layer, OperandRole::kGradient).item<double>(), gradient.scale);
      pass(memory, layer, seen, seen / 16, groups);
      input.see(seen);
      gradient.see(seen / 16);
    }
    EXPECT_EQ(memory.scale(layer, OperandRole::kInput).item<double>(), input.scale);
  }
}

TEST(Fp8Memory, WhatIsNoNumberKeepsTheScale) {
  const Groups groups = Groups::single();
  Fp8Memory memory(DelayedScaling{}, 448, true);
  const int64_t layer = memory.add_layer({.name = "a", .dtype = at::kDouble});
  pass(memory, layer, 4, 4, groups);
  pass(memory, layer, std::nan(""), std::nan(""), groups);
  EXPECT_EQ(memory.scale(layer, OperandRole::kInput).item<double>(), 112);
  EXPECT_EQ(memory.scale(layer, OperandRole::kGradient).item<double>(), 112);
}

TEST(Fp8Memory, ABackwardPassHasTheScalesOfItsForwardPassAndRecordsNoInputs) {
  const Groups groups = Groups::single();
  Fp8Memory memory(DelayedScaling{}, 448, true);
  const int64_t layer = memory.add_layer({.name = "a", .dtype = at::kDouble});
  const auto scale = [&] { return memory.scale(layer, OperandRole::kInput).item<double>(); };
  for (const int microbatch : {0, 1, 2}) {
    memory.begin_forward(microbatch);
    EXPECT_TRUE(memory.is_recording(OperandRole::kInput));
    EXPECT_FALSE(memory.is_recording(OperandRole::kGradient));
    memory.record(layer, OperandRole::kInput, at::scalar_tensor(1.0 + microbatch, at::kDouble));
    memory.end_forward(microbatch, groups);
  }
  const double of_forwards[] = {1, 448, 224};
  for (const int microbatch : {1, 0, 2}) {
    memory.begin_backward(microbatch);
    EXPECT_EQ(scale(), of_forwards[microbatch]);
    EXPECT_FALSE(memory.is_recording(OperandRole::kInput));
    EXPECT_TRUE(memory.is_recording(OperandRole::kGradient));
    memory.end_backward(microbatch, groups);
  }
  EXPECT_EQ(scale(), 448 / 3.0);
  EXPECT_FALSE(memory.is_recording(OperandRole::kInput));
}

TEST(Fp8Memory, ALinearRoundsByThePastAndIsNotChangedByEvaluation) {
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups};
  context.recipe = std::make_shared<Fp8Recipe>(Fp8Settings{.scaling = Fp8Scaling::kDelayed}, Kernels::kFused);
  RecipeMemory& memory = *context.recipe->memory();
  Linear linear(context, "a", 4, 4, {});
  linear.weight().data().copy_(at::eye(4));
  attach_gradients(linear);
  memory.begin_step();
  const auto train = [&](int microbatch, double size) {
    memory.begin_forward(microbatch);
    const at::Tensor x = at::full({1, 4}, size).set_requires_grad(true), y = linear.forward(x);
    memory.end_forward(microbatch, groups);
    memory.begin_backward(microbatch);
    y.backward(at::full({1, 4}, size));
    memory.end_backward(microbatch, groups);
    return std::pair(y[0][0].item<double>(), x.grad()[0][0].item<double>());
  };
  // The scale is 1, which leaves E4M3 three bits after the first, and E5M2 two.
  EXPECT_EQ(train(0, 1.3), std::pair(1.25, 1.25));
  // 1.3 became 448 and 57344: now it is the largest number, which everything above becomes too.
  const auto [y, dx] = train(1, 1000);
  EXPECT_FLOAT_EQ(static_cast<float>(y), 1.3F);
  EXPECT_FLOAT_EQ(static_cast<float>(dx), 1.3F);
  memory.end_step();
  const at::NoGradGuard no_grad;
  const std::vector<RecipeMemory::State> before = memory.states();
  std::vector<at::Tensor> values;
  for (const RecipeMemory::State& state : before) values.push_back(state.tensor.clone());
  linear.forward(at::full({1, 4}, 7.0));
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(memory.states()[i].tensor, values[i]));
}

TEST(Fp8Memory, AllRanksOfAStageHaveTheLargestAmax) {
  ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
    Fp8Memory memory(DelayedScaling{}, 448, true);
    const int64_t layer = memory.add_layer({.name = "a", .dtype = at::kDouble});
    pass(memory, layer, 1 + groups.rank, 8 - groups.rank, groups);
    EXPECT_EQ(memory.scale(layer, OperandRole::kInput).item<double>(), 448 / 4.0);
    EXPECT_EQ(memory.scale(layer, OperandRole::kGradient).item<double>(), 448 / 8.0);
  });
}

// Experts of other ranks have entries too, so a checkpoint fits every layout.
TEST(Fp8Memory, ExpertsHaveEntriesOfTheWholeModel) {
  ThreadWorld(2).run(Mesh({.dp = 2, .ep = 2}), [&](Groups& groups) {
    Fp8Memory memory(DelayedScaling{.history_length = 2}, 448, true);
    const int64_t layer = memory.add_layer({.name = "e",
                                            .dtype = at::kDouble,
                                            .num_experts = 4,
                                            .first_expert = 2 * groups.ep->rank(),
                                            .num_local_experts = 2});
    memory.begin_forward(0);
    const double first = 1 + 2 * groups.ep->rank();
    memory.record(layer, OperandRole::kInput, at::tensor({first, first + 1}, at::kDouble));
    memory.end_forward(0, groups);
    const at::Tensor own = memory.scale(layer, OperandRole::kInput);
    EXPECT_TRUE(at::equal(own, 448 / at::tensor({first, first + 1}, at::kDouble)));
    ASSERT_EQ(memory.states().size(), 6U);
    EXPECT_EQ(memory.states()[0].placement.pieces[0].name, "e.input");
    EXPECT_EQ(memory.states()[0].key, "fp8_scale");
    EXPECT_TRUE(at::equal(memory.states()[0].tensor, 448 / at::tensor({1., 2., 3., 4.}, at::kDouble)));
    EXPECT_EQ(memory.states()[1].key, "fp8_amax_history");
    EXPECT_EQ(memory.states()[1].tensor.sizes(), at::IntArrayRef({4, 2}));
    EXPECT_TRUE(at::equal(memory.states()[1].tensor.select(1, 0), at::tensor({1., 2., 3., 4.}, at::kDouble)));
  });
}

}  // namespace
}  // namespace megalith
