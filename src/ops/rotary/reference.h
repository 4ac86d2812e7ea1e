// Rotary embedding composed from ATen; see ops/rotary. rotary is differentiated by ATen's autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::reference {

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved);
at::Tensor rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved);

}  // namespace megalith::ops::reference
