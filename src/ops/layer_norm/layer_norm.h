// Layer normalisation over the last dim, also fused with the preceding residual addition.
//
//   y = (x - mean) / sqrt(var + eps) * weight + bias       computed in float32, rounded once to the dtype of x
//
// var is biased: mean((x - mean)^2). With zero_centered_weight (Megatron's apply_layernorm_1p) `weight` is stored minus
// 1, weight + 1 formed in float32. Source: arXiv:1607.06450 (layer normalisation).
//
// x        (t, h)  floating, contiguous
// weight   (h)     dtype of x
// bias     (h)     dtype of x
// mean     (t)     wide, for backward
// inv_std  (t)     wide: 1 / sqrt(var + eps), for backward
// amax     (0-d)   raised to the largest |y| (ops/amax.h), or undefined
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

// (y (t, h), mean, inv_std)
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                                  const at::Tensor& bias, double eps,
                                                                  bool zero_centered_weight = false,
                                                                  Kernels kernels = Kernels::kFused,
                                                                  const at::Tensor& amax = {});

// (dx (t, h), dweight (h) wide, dbias (h) wide)
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                   const at::Tensor& weight, const at::Tensor& mean,
                                                                   const at::Tensor& inv_std,
                                                                   bool zero_centered_weight = false,
                                                                   Kernels kernels = Kernels::kFused);

// sum = x + residual, rounded; y = layer_norm(sum). Returns (y (t, h), sum (t, h), mean, inv_std).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_forward(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias, double eps,
    bool zero_centered_weight = false, Kernels kernels = Kernels::kFused, const at::Tensor& amax = {});

// dsum (t, h): other gradient of `sum` (the residual stream). Returns (dx (t, h), of both x and residual; dweight (h);
// dbias (h)).
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_layer_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                                       const at::Tensor& sum, const at::Tensor& weight,
                                                                       const at::Tensor& mean,
                                                                       const at::Tensor& inv_std,
                                                                       bool zero_centered_weight = false,
                                                                       Kernels kernels = Kernels::kFused);

// Without an addition residual, dsum and sum are undefined.
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
