// Gradients by finite differences in float64, to hold an operator's backward to its forward.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "support/tensor_near.h"

namespace megalith::testing {

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// d (f(inputs) . direction) / d inputs by central differences. inputs are float64; every element is moved by 1e-6, so
// the result is good to about 1e-8 for functions of order one (truncation 1e-12 f''', cancellation 1e-16 / 1e-6).
inline std::vector<at::Tensor> numerical_gradients(const TensorFunction& f, const std::vector<at::Tensor>& inputs,
                                                   const at::Tensor& direction) {
  at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  std::vector<at::Tensor> moved, gradients;
  for (const at::Tensor& input : inputs) moved.push_back(input.detach().clone(at::MemoryFormat::Contiguous));
  const auto product = [&] { return (f(moved) * direction).sum().item<double>(); };
  for (at::Tensor& input : moved) {
    at::Tensor gradient = at::zeros(input.sizes(), at::kDouble);
    for (int64_t i = 0; i < input.numel(); ++i) {
      const at::Tensor element = input.view(-1)[i];
      const double value = element.item<double>();
      element.fill_(value + kStep);
      const double above = product();
      element.fill_(value - kStep);
      const double below = product();
      element.fill_(value);
      gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * kStep);
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// The gradients of f(inputs) . dy, one for each input.
using GradientFunction = std::function<std::vector<at::Tensor>(const at::Tensor& dy, const std::vector<at::Tensor>&)>;

// Those that autograd finds.
inline GradientFunction gradients_by_autograd(const TensorFunction& f) {
  return [f](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
    return torch::autograd::grad({f(leaves)}, leaves, {dy});
  };
}

// The gradients of `backward` agree with finite differences of `forward` in every element.
inline void expect_gradients_match_differences(const TensorFunction& forward, const GradientFunction& backward,
                                               const std::vector<at::Tensor>& inputs, const std::string& what) {
  const at::Tensor direction = at::randn_like(forward(inputs));
  const auto expected = numerical_gradients(forward, inputs, direction);
  const auto actual = backward(direction, inputs);
  ASSERT_EQ(actual.size(), inputs.size()) << what;
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TENSOR_NEAR(actual[i], expected[i],
                       {.abs = 1e-7, .rel_to_max = 1e-7, .what = fmt::format("{}, gradient {}", what, i)});
  }
}

}  // namespace megalith::testing
