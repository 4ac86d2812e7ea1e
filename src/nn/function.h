// For the .cc files that declare autograd Functions (the include below costs seconds a file): how a node of the graph
// keeps what its backward needs besides tensors.
//
// The rules that every Function here follows:
//   * weights enter through Parameter::value(), so that the graph knows the dependency, and get no gradient from the
//     node: it goes to the Parameter (open_grad … close_grad), which is kept, never its tensor
//   * a trainable Parameter is told in forward that a contribution will come, when a graph is recorded
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

// Keeps a value with the node; held<T>() gives it back in backward.
template <typename T>
void hold(torch::autograd::AutogradContext* node, T value) {
  node->saved_data["held"] = at::IValue::make_capsule(c10::make_intrusive<Held<T>>(std::move(value)));
}
template <typename T>
T& held(torch::autograd::AutogradContext* node) {
  return static_cast<Held<T>*>(node->saved_data.at("held").toCapsule().get())->value;
}

// Whether an operation on these tensors is recorded.
inline bool is_recording(std::initializer_list<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  return false;
}

// To be called in forward, when recording.
inline void expect_contribution(Parameter* parameter) {
  if (parameter != nullptr && parameter->is_trainable()) parameter->expect_contribution();
}

}  // namespace megalith
