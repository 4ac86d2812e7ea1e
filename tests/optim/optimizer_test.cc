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
    buffer =
        std::make_unique<GradBuffer>(std::vector<Parameter*>{weight.get(), norm.get()}, groups, GradBufferOptions{});
    optimizer = std::make_unique<Optimizer>(*buffer, groups, options, Kernels::kReference);
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

// AdamW's first step moves every element by lr whatever the gradient's size, so clipping shows only in the moments.
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
    EXPECT_TENSOR_NEAR(a.tensor, b.tensor * factor, {.rel = 1e-5, .what = a.part->parameter->name()});
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

TEST(Optimizer, TheVocabularysWeightsHaveTheirOwnLearningRate) {
  Fixture f(at::kFloat);
  Parameter head("head", Placement::whole("head", {3, 4}), {.init = Init::normal(0.5), .is_of_vocabulary = true});
  head.initialise(1);
  GradBuffer buffer({f.weight.get(), &head}, f.groups, GradBufferOptions{});
  Optimizer optimizer(buffer, f.groups, {}, Kernels::kReference);
  LearningRateOptions options{.lr = 0.1, .decoupled_lr = 0.3, .lr_decay_style = DecayStyle::kConstant};
  const at::Tensor weight = f.weight->data().clone(), rows = head.data().clone();
  f.weight->grad().fill_(1);
  head.grad().fill_(1);
  optimizer.step(LearningRateCurve(options, 100, 1).learning_rates(1), 0);  // AdamW's first step is the rate
  EXPECT_TENSOR_NEAR(f.weight->data(), weight - 0.1, {.rel = 1e-5, .what = "a matrix"});
  EXPECT_TENSOR_NEAR(head.data(), rows - 0.3, {.rel = 1e-5, .what = "the head"});
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
  EXPECT_TRUE(step.was_skipped());
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

// A step in bf16 moments is that of fp32 ones, rounded: the first update divides m by the root of v, each off by 2^-9.
TEST(Optimizer, MomentsInBf16TakeHalfTheBytesAndRoundTheUpdate) {
  OptimizerOptions narrow{.use_precision_aware_optimizer = true,
                          .exp_avg_dtype = MomentDtype::kBf16,
                          .exp_avg_sq_dtype = MomentDtype::kBf16};
  Fixture a(at::kFloat), b(at::kFloat, narrow);
  EXPECT_EQ(b.optimizer->num_bytes(), 16 * 2 * 2);
  for (const OptimizerTensor& entry : b.optimizer->state()) EXPECT_EQ(entry.tensor.scalar_type(), at::kBFloat16);
  for (int i = 0; i < 20; ++i) {
    a.set_gradients(1.0 + i % 3);
    b.set_gradients(1.0 + i % 3);
    a.optimizer->step(1e-2, 0.1);
    b.optimizer->step(1e-2, 0.1);
  }
  // 20 updates of 1e-2, each within a few roundings of 2^-9.
  EXPECT_TENSOR_NEAR(b.weight->data(), a.weight->data(), {.abs = 20 * 1e-2 / 32, .what = "bf16 moments"});
  EXPECT_FALSE(at::equal(b.weight->data(), a.weight->data()));
  EXPECT_EQ(Fixture(at::kDouble, narrow).optimizer->state()[0].tensor.scalar_type(), at::kDouble);
}

TEST(Optimizer, MomentDtypesThatCannotBeAreRefused) {
  OptimizerOptions options;
  EXPECT_TRUE(check_optimizer_options(options).empty());
  options.exp_avg_dtype = MomentDtype::kBf16;
  EXPECT_EQ(check_optimizer_options(options).size(), 1u);  // they differ
  options.exp_avg_sq_dtype = MomentDtype::kBf16;
  EXPECT_EQ(check_optimizer_options(options).size(), 1u);  // not allowed
  options.use_precision_aware_optimizer = true;
  EXPECT_TRUE(check_optimizer_options(options).empty());
}

TEST(Optimizer, TheLossScaleIsDividedOut) {
  Fixture plain(at::kFloat), scaled(at::kFloat);
  plain.set_gradients(0.5);
  scaled.set_gradients(0.5 * 1024);
  const double norm = plain.optimizer->step(1e-2, 0.1).grad_norm;
  EXPECT_EQ(scaled.optimizer->step(1e-2, 0.1, /*loss_scale=*/1024).grad_norm, norm);
  EXPECT_TENSOR_NEAR(scaled.weight->data(), plain.weight->data(), {.what = "a power of two changes no bit"});
}

}  // namespace
}  // namespace megalith
