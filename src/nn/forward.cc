#include "nn/forward.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace megalith {

const at::Tensor* Bundle::find(std::string_view name) const {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

const at::Tensor& Bundle::at(std::string_view name) const {
  const at::Tensor* tensor = find(name);
  MEGALITH_CHECK(tensor != nullptr, "the bundle has no tensor '{}'", name);
  return *tensor;
}

void Bundle::set(std::string name, at::Tensor tensor) {
  for (auto& [key, value] : tensors) {
    if (key == name) {
      value = std::move(tensor);
      return;
    }
  }
  tensors.emplace_back(std::move(name), std::move(tensor));
}

ObjectiveScales ObjectiveScales::times(double factor) const {
  return {per_weight.defined() ? per_weight * factor : at::scalar_tensor(factor, at::kDouble), per_microbatch * factor};
}

}  // namespace megalith
