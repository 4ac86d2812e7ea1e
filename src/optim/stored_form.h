// How a tensor of optimizer state that is kept in another form than checkpoints hold is read from its parts and written
// to them, element by element: a master that is kept as a weight and the bits that it lacks is fp32 in files.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace megalith {

struct StoredForm {
  at::ScalarType dtype = at::kFloat;  // in checkpoints
  std::vector<at::Tensor> parts;      // of one shape; views of them are written through
  at::Tensor (*join)(const std::vector<at::Tensor>& parts) = nullptr;
  void (*split)(const at::Tensor& stored, const std::vector<at::Tensor>& parts) = nullptr;
};

}  // namespace megalith
