// The optimizer's step around the operator: clipping, masters, decay groups, refused steps.
#include "optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "parallel/grad_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

struct Fixture {
  explicit Fixture(at::ScalarType dtype, OptimizerOptions options = {}) {
    ParameterOptions parameter{.dtype = dtype, .init = Init::normal(0.5)};
    weight = std::make_unique<Parameter>("w", Placement::whole("w", {3, 4}), parameter);
    parameter.decay_mult = 0;
    norm = std::make_unique<Parameter>("norm", Placement::whole("norm", {4}), parameter);
    weight->initialise(1);
    norm->initialise(1);
    buffer = std::make_unique<GradBuffer>(std::vector<Parameter*>{weight.get(), norm.get()}, groups.dp_cp,
                                          GradBufferOptions{});
    optimizer = std::make_unique<Optimizer>(buffer->parameters(), groups, options, Kernels::kReference);
  }

  void set_gradients(double scale) {
    weight->grad().copy_(at::arange(12, at::kFloat).view({3, 4}) * scale);
    norm->grad().copy_(at::ones({4}) * scale);
  }

  Groups groups = Groups::single();
  std::unique_ptr<Parameter> weight, norm;
  std::unique_ptr<GradBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
};

double gradient_norm(double scale) { return scale * std::sqrt(506.0 + 4.0); }  // sum of squares of 0…11, and four ones

TEST(Optimizer, ReportsTheNormBeforeClipping) {
  Fixture f(at::kFloat, {.clip_grad = 1.0});
  f.set_gradients(2.0);
  EXPECT_NEAR(f.optimizer->step(0, 0).grad_norm, gradient_norm(2.0), 1e-5);
}

// AdamW's first step moves every element by lr whatever the gradient's size, so clipping shows in the moments alone.
TEST(Optimizer, ClippingScalesWhatTheMomentsSee) {
  Fixture clipped(at::kFloat, {.clip_grad = 1.0}), free(at::kFloat, {.clip_grad = 0});
  clipped.set_gradients(3.0);
  free.set_gradients(3.0);
  clipped.optimizer->step(1e-3, 0);
  free.optimizer->step(1e-3, 0);
  const double factor = 1.0 / (gradient_norm(3.0) + 1e-6);
  for (size_t i = 0; i < clipped.optimizer->state().size(); ++i) {
    const OptimizerTensor& a = clipped.optimizer->state()[i];
    const OptimizerTensor& b = free.optimizer->state()[i];
    if (a.key != "exp_avg") continue;
    EXPECT_TENSOR_NEAR(a.tensor, b.tensor * factor, {.rel = 1e-5, .what = a.parameter->name()});
  }
}

TEST(Optimizer, DecaySparesParametersWithoutIt) {
  Fixture f(at::kFloat);
  f.set_gradients(0.0);
  const at::Tensor weight = f.weight->data().clone(), norm = f.norm->data().clone();
  f.optimizer->step(/*lr=*/0.1, /*weight_decay=*/0.5);
  EXPECT_TENSOR_NEAR(f.weight->data(), weight * (1 - 0.05), {.rel = 1e-6, .what = "decayed"});
  EXPECT_TENSOR_NEAR(f.norm->data(), norm, {.what = "not decayed"});
}

// Steps smaller than half a unit in the last place of bf16 add up in the master and would be lost without it.
TEST(Optimizer, MastersKeepWhatBf16WouldLose) {
  Fixture f(at::kBFloat16, {.clip_grad = 0});
  f.weight->data().fill_(1.0);
  f.optimizer->reset_masters();
  for (int i = 0; i < 100; ++i) {
    f.set_gradients(1.0);
    f.optimizer->step(1e-4, 0);
  }
  // Element 0 has gradient 0 and stays; the others move by 1e-4 a step.
  EXPECT_EQ(f.weight->data()[0][0].item<float>(), 1.0f);
  EXPECT_NEAR(f.weight->data()[1][1].item<float>(), 0.99, 1.0 / 256);
  EXPECT_LT(f.weight->data()[1][1].item<float>(), 1.0f);
}

TEST(Optimizer, ANonFiniteGradientIsNamedAndChangesNothing) {
  Fixture f(at::kFloat);
  f.set_gradients(1.0);
  f.norm->grad()[2] = std::numeric_limits<float>::infinity();
  const at::Tensor weight = f.weight->data().clone();
  const OptimizerStep step = f.optimizer->step(0.1, 0.1);
  EXPECT_TRUE(step.was_skipped);
  EXPECT_EQ(step.first_bad_rank, 0);
  EXPECT_EQ(step.bad_parameter, "norm");
  EXPECT_EQ(f.optimizer->num_steps(), 0);
  EXPECT_TENSOR_NEAR(f.weight->data(), weight, {.what = "weight"});
}

TEST(Optimizer, CountsZerosWhenAsked) {
  Fixture f(at::kFloat, {.log_num_zeros_in_grad = true});
  f.set_gradients(1.0);
  EXPECT_EQ(f.optimizer->step(0, 0).num_zeros, 1);  // arange starts at 0
}

TEST(Optimizer, StateBytesAreThoseOfItsTensors) {
  EXPECT_EQ(Fixture(at::kBFloat16).optimizer->num_bytes(), 16 * 4 * 3);
  EXPECT_EQ(Fixture(at::kFloat).optimizer->num_bytes(), 16 * 4 * 2);  // the model's tensor is the master
}

}  // namespace
}  // namespace megalith
