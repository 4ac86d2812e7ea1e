// The experts' products composed from ATen, one expert after the other; see ops/grouped_linear. w and dw are
// (e, o, h).
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops::reference {

at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets);
at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets);
void grouped_linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                           bool accumulate);

}  // namespace megalith::ops::reference
