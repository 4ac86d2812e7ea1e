// RMS norm of a whole projection, such as all of a token's queries (OLMo 2), split over tp:
//
//   y = round(x / sqrt(mean over the channels of all ranks of x^2 + eps)) * weight          as ops/rms_norm
//
// Ranks sum a number per token: squares in forward, gradient times output in backward. Source: arXiv:2501.00656.
#pragma once

#include <string>

#include "nn/module.h"
#include "nn/norm_options.h"

namespace megalith {

class Group;

class ProjectionNorm : public Module {
 public:
  // channels: over all tp ranks. UserError unless normalization is RMSNorm.
  ProjectionNorm(const LayerContext& context, const std::string& name, int64_t channels, const NormOptions& options);

  // x (t, channels / tp), contiguous -> same shape. tp ranks have the same tokens.
  at::Tensor forward(const at::Tensor& x);

 private:
  friend struct ProjectionNormFunction;

  struct Normalised {
    at::Tensor y;
    at::Tensor inv_rms;  // (t) wide
  };
  Normalised normalise(const at::Tensor& x) const;
  // dx.
  at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& inv_rms) const;

  double epsilon_;
  int64_t channels_;
  Group* tp_;
  Kernels kernels_;
  Parameter* weight_;
};

}  // namespace megalith
