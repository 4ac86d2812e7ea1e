// SGD on one rank against its formula, step by step.
#include "optim/update_rules.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "optim/optimizer.h"
#include "parallel/grad_buffer.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

constexpr double kLr = 0.02, kDecay = 0.3;

// A parameter of every role, and an optimizer over them.
struct Roles {
  explicit Roles(const OptimizerOptions& options, at::ScalarType dtype = at::kDouble) {
    add("matrix", {6, 4}, ParameterRole::kMatrix, dtype);
    add("tall", {9, 2}, ParameterRole::kRouter, dtype);
    Placement qkv;
    qkv.local_shape = {8, 4};
    qkv.pieces.push_back({"q", {4, 4}, Box::whole({4, 4}), Box{{0, 0}, {4, 4}}});
    qkv.pieces.push_back({"k", {2, 4}, Box::whole({2, 4}), Box{{4, 0}, {2, 4}}});
    qkv.pieces.push_back({"v", {2, 4}, Box::whole({2, 4}), Box{{6, 0}, {2, 4}}});
    add("qkv", qkv, ParameterRole::kQkv, dtype);
    add("norm", {5}, ParameterRole::kVector, dtype, /*decay_mult=*/0);
    add("embedding", {7, 4}, ParameterRole::kEmbedding, dtype);
    add("head", {7, 4}, ParameterRole::kHead, dtype);
    std::vector<Parameter*> pointers;
    for (const auto& one : params) pointers.push_back(one.get());
    buffer = std::make_unique<GradBuffer>(pointers, groups, GradBufferOptions{});
    optimizer = std::make_unique<Optimizer>(*buffer, groups, options, Kernels::kReference);
  }

  void add(const std::string& name, std::vector<int64_t> shape, ParameterRole role, at::ScalarType dtype,
           double decay_mult = 1) {
    add(name, Placement::whole(name, std::move(shape)), role, dtype, decay_mult);
  }
  void add(const std::string& name, const Placement& placement, ParameterRole role, at::ScalarType dtype,
           double decay_mult = 1) {
    params.push_back(std::make_unique<Parameter>(
        name, placement,
        ParameterOptions{.dtype = dtype, .init = Init::normal(0.5), .decay_mult = decay_mult, .role = role}));
    params.back()->initialise(3);
  }
  Parameter& operator[](const std::string& name) {
    return **std::find_if(params.begin(), params.end(), [&](const auto& one) { return one->name() == name; });
  }
  static at::Tensor gradient(const Parameter& param, int step) {
    const int64_t count = param.placement().num_local_elements();
    const auto seed = static_cast<double>(param.name().size() + 10 * static_cast<size_t>(step));
    const at::Tensor i = at::arange(count, at::kDouble);
    return at::sin(0.37 * i * i + seed).view(param.placement().local_shape);  // of full rank
  }
  void step(int number) {
    for (const auto& one : params) one->grad().copy_(gradient(*one, number));
    optimizer->step(kLr, kDecay);
  }
  std::vector<std::string> keys(const std::string& name) {
    std::vector<std::string> found;
    for (const OptimizerTensor& entry : optimizer->state()) {
      if (entry.part->parameter->name() == name) found.push_back(entry.key);
    }
    return found;
  }

  Groups groups = Groups::single();
  std::vector<std::unique_ptr<Parameter>> params;
  std::unique_ptr<GradBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
};

TEST(UpdateRules, SgdIsItsFormula) {
  for (const double momentum : {0.0, 0.9}) {
    Roles f({.optimizer = OptimizerKind::kSgd, .clip_grad = 0, .sgd_momentum = momentum});
    std::vector<at::Tensor> weights, buffers;
    for (const auto& one : f.params) {
      weights.push_back(one->data().clone());
      buffers.push_back(at::zeros_like(weights.back()));
    }
    for (int step = 0; step < 3; ++step) {
      f.step(step);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double decay = f.params[i]->options().decay_mult * kDecay;
        buffers[i] = momentum * buffers[i] + Roles::gradient(*f.params[i], step) + decay * weights[i];
        weights[i] = weights[i] - kLr * buffers[i];
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TENSOR_NEAR(f.params[i]->data(), weights[i], {.abs = 1e-13, .what = f.params[i]->name()});
    }
    EXPECT_EQ(f.optimizer->state().size(), momentum == 0 ? 0 : f.params.size());
  }
}

TEST(UpdateRules, SgdKeepsWhatBf16WouldLose) {
  Roles f({.optimizer = OptimizerKind::kSgd, .clip_grad = 0, .sgd_momentum = 0}, at::kBFloat16);
  f["norm"].data().fill_(1.0);
  f.optimizer->reset_masters();
  for (int step = 0; step < 100; ++step) {
    for (const auto& one : f.params) one->grad().fill_(1.0);
    f.optimizer->step(/*lr=*/1e-4, 0);
  }
  EXPECT_NEAR(f["norm"].data()[0].item<float>(), 0.99, 1.0 / 256);
}

TEST(UpdateRules, OptionsThatAnOptimizerCannotFollowAreRefused) {
  OptimizerOptions options{.optimizer = OptimizerKind::kSgd,
                           .use_precision_aware_optimizer = true,
                           .exp_avg_dtype = MomentDtype::kBf16,
                           .exp_avg_sq_dtype = MomentDtype::kBf16};
  ASSERT_EQ(check_optimizer_options(options).size(), 1u);
  options.optimizer = OptimizerKind::kAdam;
  EXPECT_TRUE(check_optimizer_options(options).empty());
}

}  // namespace
}  // namespace megalith
