// SwiGLU composed from ATen; see ops/swiglu. swiglu is differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::reference {

at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace megalith::ops::reference
