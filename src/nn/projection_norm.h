// The root-mean-square norm of a whole projection, such as all queries of a token (OLMo 2), split over tp:
//
//   y = round(x / sqrt(mean over the channels of all ranks of x^2 + eps)) * weight          as ops/rms_norm
//
// Ranks sum one number per token in each direction: squares in forward, gradient times output in backward. Source: OLMo
// team 2024, arXiv:2501.00656; the norm is Zhang & Sennrich 2019, arXiv:1910.07467.
#pragma once

#include <string>

#include "nn/module.h"
#include "nn/norm_options.h"

namespace megalith {

class Group;

class ProjectionNorm : public Module {
 public:
  // name      canonical, without `.weight`
  // channels  of the whole projection, which tp divides
  // UserError unless the options' normalization is RMSNorm.
  ProjectionNorm(const LayerContext& context, const std::string& name, int64_t channels, const NormOptions& options);

  // x (t, channels / tp), contiguous -> same shape, differentiable. tp ranks have the same tokens.
  at::Tensor forward(const at::Tensor& x);

 private:
  friend struct ProjectionNormFunction;

  struct Normalised {
    at::Tensor y;
    at::Tensor inv_rms;  // (t) wide
  };
  Normalised normalise(const at::Tensor& x) const;
  // Returns the gradient of x; the weight's goes to the Parameter.
  at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& inv_rms) const;

  double epsilon_;
  int64_t channels_;
  Group* tp_;
  Kernels kernels_;
  Parameter* weight_;
};

}  // namespace megalith
