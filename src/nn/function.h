// Keeps non-tensors with autograd nodes; for .cc files (the include below costs seconds per file). Rules of every
// Function:
//   * weights enter through Parameter::value(); the node keeps the Parameter, never its tensor
//   * gradients go straight to the Parameter (open_grad … close_grad)
//   * when recording, forward announces a contribution to each trainable Parameter
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <utility>

#include "nn/parameter.h"

namespace megalith {

template <typename T>
struct Held : torch::CustomClassHolder {
  explicit Held(T held) : value(std::move(held)) {}
  T value;
};

// Read in backward by held<T>().
template <typename T>
void hold(torch::autograd::AutogradContext* node, T value) {
  node->saved_data["held"] = at::IValue::make_capsule(c10::make_intrusive<Held<T>>(std::move(value)));
}
template <typename T>
T& held(torch::autograd::AutogradContext* node) {
  return static_cast<Held<T>*>(node->saved_data.at("held").toCapsule().get())->value;
}

inline bool is_recording(std::initializer_list<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

inline void expect_contribution(Parameter* parameter) {
  if (parameter != nullptr && parameter->is_trainable()) parameter->expect_contribution();
}

}  // namespace megalith
