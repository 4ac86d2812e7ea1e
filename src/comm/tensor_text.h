// Tensors in messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace megalith {

// "Float [2, 3]"
std::string text_of(at::ScalarType dtype, at::IntArrayRef shape);
std::string text_of(const at::Tensor& tensor);

}  // namespace megalith
