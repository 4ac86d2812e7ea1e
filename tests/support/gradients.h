// Gradients by finite differences in float64, to hold an operator's backward to its forward.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
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
  for (at::Tensor& input : moved) {
    at::Tensor gradient = at::zeros_like(input);
    double* values = input.mutable_data_ptr<double>();
    for (int64_t i = 0; i < input.numel(); ++i) {
      const double value = values[i];
      values[i] = value + kStep;
      const double above = (f(moved) * direction).sum().item<double>();
      values[i] = value - kStep;
      const double below = (f(moved) * direction).sum().item<double>();
      values[i] = value;
      gradient.mutable_data_ptr<double>()[i] = (above - below) / (2 * kStep);
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// Autograd's gradients of f(inputs) . direction.
inline std::vector<at::Tensor> autograd_gradients(const TensorFunction& f, const std::vector<at::Tensor>& inputs,
                                                  const at::Tensor& direction) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  return torch::autograd::grad({f(leaves)}, leaves, {direction});
}

// Autograd's gradients of f agree with finite differences in every element.
inline void expect_gradients_match_differences(const TensorFunction& f, const std::vector<at::Tensor>& inputs,
                                               const std::string& what) {
  const at::Tensor direction = at::randn_like(f(inputs));
  const auto expected = numerical_gradients(f, inputs, direction);
  const auto actual = autograd_gradients(f, inputs, direction);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TENSOR_NEAR(actual[i], expected[i],
                       {.abs = 1e-7, .rel_to_max = 1e-7, .what = fmt::format("{}, gradient {}", what, i)});
  }
}

}  // namespace megalith::testing
