// Activations of GPT's MLP, with the preceding linear's bias: GELU (form.h), gated GELU, squared ReLU.
//
//   bias_gelu          y = gelu(x + bias)
//   geglu              y = gelu(gate) * up,  gate_up = [gate | up] along the last dim
//   bias_squared_relu  y = max(x + bias, 0)^2
//
// In float32; x + bias is not rounded; gelu(gate) is rounded before the product, as if unfused. Sources:
// arXiv:1606.08415 (GELU), arXiv:2002.05202 (gated), arXiv:2109.08668 (squared ReLU).
//
// x        (t, f)   floating, contiguous
// bias     (f)      dtype of x; undefined: none
// gate_up  (t, 2f)  as x
// returns  (t, f)   same dtype
//
// dx is also the gradient of x + bias, which bias_grad_ (ops/linear) sums.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/gelu/form.h"
#include "ops/operator.h"

namespace megalith::ops {

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, GeluForm form, Kernels kernels = Kernels::kFused);

// (t, f) -> (t, f)
at::Tensor bias_gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, GeluForm form,
                              Kernels kernels = Kernels::kFused);

at::Tensor geglu(const at::Tensor& gate_up, GeluForm form, Kernels kernels = Kernels::kFused);

// (t, f) -> (t, 2f)
at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, GeluForm form,
                          Kernels kernels = Kernels::kFused);

at::Tensor bias_squared_relu(const at::Tensor& x, const at::Tensor& bias, Kernels kernels = Kernels::kFused);

// (t, f) -> (t, f)
at::Tensor bias_squared_relu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                      Kernels kernels = Kernels::kFused);

struct GeluTable {
  at::Tensor (*bias_gelu)(const at::Tensor& x, const at::Tensor& bias, GeluForm form);
  at::Tensor (*bias_gelu_backward)(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, GeluForm form);
  at::Tensor (*geglu)(const at::Tensor& gate_up, GeluForm form);
  at::Tensor (*geglu_backward)(const at::Tensor& dy, const at::Tensor& gate_up, GeluForm form);
  at::Tensor (*bias_squared_relu)(const at::Tensor& x, const at::Tensor& bias);
  at::Tensor (*bias_squared_relu_backward)(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias);
};
extern const GeluTable kGeluReference;
extern const Operator<GeluTable> kGelu;

}  // namespace megalith::ops
