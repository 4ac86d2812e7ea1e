// Optimizer state whose checkpoint form differs, converted by element: a master kept as a weight and its missing bits
// is fp32 in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace megalith {

struct StoredForm {
  at::ScalarType dtype = at::kFloat;  // in checkpoints
  std::vector<at::Tensor> parts;      // of one shape; their views are written through
  at::Tensor (*join)(const std::vector<at::Tensor>& parts) = nullptr;
  void (*split)(const at::Tensor& stored, const std::vector<at::Tensor>& parts) = nullptr;
};

}  // namespace megalith
