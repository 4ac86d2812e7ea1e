// Layer normalisation over the last dim, also fused with the preceding residual addition.
//
//   y = (x - mean) / sqrt(var + eps) * weight + bias       computed in float32, rounded once to the dtype of x
//
// var is biased: mean((x - mean)^2). With zero_centered_weight (Megatron's apply_layernorm_1p) `weight` is stored minus
// 1, and weight + 1 is formed in float32. Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
//
// x        (t, h)  bf16 | fp16 | fp32 | fp64, contiguous
// weight   (h)     dtype of x
// bias     (h)     dtype of x
// mean     (t)     fp32 (fp64 for fp64 inputs), kept for backward
// inv_std  (t)     as mean: 1 / sqrt(var + eps), kept for backward
// amax     (0-d)   wide, or undefined: raised to the largest |y| (ops/amax.h)
// throws   UserError if weight or bias is not (h)
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

// returns (y (t, h), mean (t), inv_std (t))
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                                  const at::Tensor& bias, double eps,
                                                                  bool zero_centered_weight = false,
                                                                  Kernels kernels = Kernels::kFused,
                                                                  const at::Tensor& amax = {});

// returns (dx (t, h) dtype of x, dweight (h) fp32 (fp64 for fp64 inputs), dbias (h) as dweight)
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                   const at::Tensor& weight, const at::Tensor& mean,
                                                                   const at::Tensor& inv_std,
                                                                   bool zero_centered_weight = false,
                                                                   Kernels kernels = Kernels::kFused);

// sum = x + residual, rounded to their dtype; y = layer_norm(sum).
// returns (y (t, h), sum (t, h), mean (t), inv_std (t))
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_forward(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias, double eps,
    bool zero_centered_weight = false, Kernels kernels = Kernels::kFused, const at::Tensor& amax = {});

// dsum  (t, h)  other gradient of `sum` (the residual stream)
// returns (dx (t, h), the gradient of both x and residual; dweight (h) fp32; dbias (h) fp32)
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_layer_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                                       const at::Tensor& sum, const at::Tensor& weight,
                                                                       const at::Tensor& mean,
                                                                       const at::Tensor& inv_std,
                                                                       bool zero_centered_weight = false,
                                                                       Kernels kernels = Kernels::kFused);

// residual and dsum are undefined without an addition; then so is sum.
struct LayerNormTable {
  // (y, sum, mean, inv_std)
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> (*forward)(const at::Tensor& x, const at::Tensor& residual,
                                                                        const at::Tensor& weight,
                                                                        const at::Tensor& bias, double eps,
                                                                        bool zero_centered_weight,
                                                                        const at::Tensor& amax);
  // (dx, dweight, dbias)
  std::tuple<at::Tensor, at::Tensor, at::Tensor> (*backward)(const at::Tensor& dy, const at::Tensor& dsum,
                                                             const at::Tensor& x, const at::Tensor& weight,
                                                             const at::Tensor& mean, const at::Tensor& inv_std,
                                                             bool zero_centered_weight);
};
extern const LayerNormTable kLayerNormReference;
extern const Operator<LayerNormTable> kLayerNorm;

}  // namespace megalith::ops
