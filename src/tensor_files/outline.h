// Stored tensors that are read when their values are needed, one at a time.
//
// An outline has a stored tensor's shape, strides and dtype, and no memory: it is on the meta device, and its storage
// names the place in the file. Views of it are outlines of what they cover.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_files/safetensors.h"

namespace megalith {

// UserError for a dtype that our tensors cannot hold.
at::Tensor outline_of(const FileTensor& stored);

// The values of an outline, as FileTensor::view() gives them; their pages leave memory with the tensor. Any other
// tensor as it is.
at::Tensor values_of(const at::Tensor& tensor);

}  // namespace megalith
