// Root-mean-square normalisation over the last dim, also fused with the preceding residual addition.
//
//   y = round(x / sqrt(mean(x^2) + eps)) * weight          statistics wide, round() to x's dtype
//
// That rounding is Hugging Face's, and matters in bf16. Source: arXiv:1910.07467 (RMSNorm).
//
// x        (t, h)  floating, contiguous
// weight   (h)     dtype of x
// inv_rms  (t)     wide: 1 / sqrt(mean(x^2) + eps), kept for backward
// amax     (0-d)   wide, or undefined: raised to the largest |y| (ops/amax.h)
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "ops/operator.h"

namespace megalith::ops {

// (y (t, h), inv_rms (t))
std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                    Kernels kernels = Kernels::kFused, const at::Tensor& amax = {});

// (dx (t, h) dtype of x, dweight (h) wide)
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& inv_rms,
                                                     Kernels kernels = Kernels::kFused);

// sum = x + residual, rounded; y = rms_norm(sum). Returns (y (t, h), sum (t, h), inv_rms (t)).
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                                                    const at::Tensor& weight, double eps,
                                                                    Kernels kernels = Kernels::kFused,
                                                                    const at::Tensor& amax = {});

// dsum (t, h): other gradient of `sum` (the residual stream). Returns (dx (t, h), of both x and residual; dweight (h)).
std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                         const at::Tensor& sum, const at::Tensor& weight,
                                                         const at::Tensor& inv_rms, Kernels kernels = Kernels::kFused);

// Without an addition residual, dsum and sum are undefined.
struct RmsNormTable {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> (*forward)(const at::Tensor& x, const at::Tensor& residual,
                                                            const at::Tensor& weight, double eps,
                                                            const at::Tensor& amax);
  std::tuple<at::Tensor, at::Tensor> (*backward)(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                                                 const at::Tensor& weight, const at::Tensor& inv_rms);
};
extern const RmsNormTable kRmsNormReference;
extern const Operator<RmsNormTable> kRmsNorm;

}  // namespace megalith::ops
