// Steps of an eight-bit layer on any device, for the tests of both vendors' libraries. Devices with the same eight bits
// round operands equally: they differ only by the order of the sums and the rounding of results to bf16.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/groups.h"
#include "nn/fp8_recipe.h"
#include "nn/linear.h"
#include "support/module_tools.h"

namespace megalith::fp8_steps {

using namespace test;

inline constexpr int64_t kIn = 256, kOut = 128, kTokens = 128;

struct Case {
  std::string name;
  Fp8Settings settings;
  at::ScalarType dtype = at::kBFloat16;
};

inline std::vector<Case> all_cases() {
  const DelayedScaling long_history{.history_length = 3, .takes_largest = true, .margin = 1};
  return {{"tensorwise", {.scaling = Fp8Scaling::kTensorwise}},
          {"tensorwise, fp32", {.scaling = Fp8Scaling::kTensorwise}, at::kFloat},
          {"tensorwise, e4m3", {.format = Fp8Format::kE4m3, .scaling = Fp8Scaling::kTensorwise}},
          {"transposes made again", {.scaling = Fp8Scaling::kTensorwise, .keeps_transposed_weights = false}},
          {"no copies of weights", {.scaling = Fp8Scaling::kTensorwise, .keeps_weights = false}},
          {"weight gradients in bf16", {.scaling = Fp8Scaling::kTensorwise, .rounds_wgrad = false}},
          {"delayed", {.scaling = Fp8Scaling::kDelayed, .delayed = long_history}},
          {"blockwise", {.scaling = Fp8Scaling::kBlockwise}},
          {"blockwise, transposes made again", {.scaling = Fp8Scaling::kBlockwise, .keeps_transposed_weights = false}}};
}

inline void attach_gradients_there(Linear& linear, at::Device device) {
  linear.for_each_parameter([&](Parameter& parameter) {
    parameter.attach_grad_buffer(
        at::zeros(parameter.value().sizes(), at::TensorOptions(device).dtype(parameter.grad_dtype())));
    parameter.begin_step();
  });
}

// Numbers whose sizes differ from step to step, so that scales do.
inline at::Tensor numbers_of_step(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::manual_seed(seed);
  return (at::randn(sizes) * std::exp2(static_cast<double>(seed % 5))).to(dtype);
}

// Results of three steps of two microbatches, moved to the CPU. The weights are changed after each step, as an
// optimizer would, by numbers that do not depend on the device.
inline std::vector<at::Tensor> run_steps(const Case& one, std::shared_ptr<const MatmulRecipe> recipe, at::Device device,
                                  int64_t tokens = kTokens) {
  const Groups groups = Groups::single();
  LayerContext context{.groups = &groups, .dtype = one.dtype, .device = device};
  context.recipe = std::move(recipe);
  RecipeMemory& memory = *context.recipe->memory();
  Linear linear(context, "a", kIn, kOut, {.has_bias = true});
  load(linear, golden_weights(linear, one.dtype));
  std::vector<at::Tensor> found;
  for (uint64_t step = 0; step < 3; ++step) {
    attach_gradients_there(linear, device);
    memory.begin_step();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const uint64_t seed = 10 * step + static_cast<uint64_t>(microbatch);
      const at::Tensor x = numbers_of_step({tokens, kIn}, seed, one.dtype).to(device).set_requires_grad(true);
      memory.begin_forward(microbatch);
      const at::Tensor y = linear.forward(x);
      memory.end_forward(microbatch, groups);
      memory.begin_backward(microbatch);
      y.backward(numbers_of_step({tokens, kOut}, seed + 1000, one.dtype).to(device));
      memory.end_backward(microbatch, groups);
      found.push_back(y.detach().to(at::kCPU));
      found.push_back(x.grad().to(at::kCPU));
    }
    memory.end_step();
    found.push_back(linear.weight().grad().to(at::kCPU).clone());
    found.push_back(linear.bias()->grad().to(at::kCPU).clone());
    linear.weight().data().mul_(0.5).add_(numbers_of_step({kOut, kIn}, 77 + step, one.dtype).mul_(0.1).to(device));
  }
  return found;
}

inline std::shared_ptr<const MatmulRecipe> recipe_for(const Case& one) {
  return std::make_shared<const Fp8Recipe>(one.settings, Kernels::kFused);
}

inline double largest_difference(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = relative_difference(actual[i].to(at::kDouble), expected[i].to(at::kDouble));
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

// In fp32 a sum of 256 products in another order; in bf16 that may fall to the other side of a tie, 2^-8 of the value.
inline double bound_of(const Case& one) { return one.dtype == at::kFloat ? 1e-5 : 1.0 / 128; }

}  // namespace megalith::fp8_steps
