// Root-mean-square normalisation as a layer, alone and fused with the residual addition before it (ops/rms_norm.h).
#pragma once

#include <functional>
#include <string>

#include "nn/module.h"

namespace megalith {

// The residual stream between two blocks: the sum so far, and what the last block adds to it. Keeping them apart lets
// the addition fuse with the norm that follows.
struct ResidualStream {
  at::Tensor delta;     // (t, h)
  at::Tensor residual;  // (t, h); undefined before the first addition

  at::Tensor sum() const;  // differentiable
};

class RmsNorm : public Module {
 public:
  // name  canonical, without `.weight`
  RmsNorm(const LayerContext& context, const std::string& name, int64_t hidden, double eps);

  // x (t, h) -> (t, h), differentiable
  at::Tensor forward(const at::Tensor& x);
  // Adds delta to the residual and returns the norm of the sum; the stream keeps the sum as its residual.
  at::Tensor forward(ResidualStream& stream);

  // How to compute again what the last forward gave for this stream (which is as that left it): for Linear::forward.
  std::function<at::Tensor()> recomputation(const ResidualStream& stream) const;

  Parameter& weight() { return *weight_; }

 protected:
  LayerCost own_cost(const CostShape& shape) const override;

 private:
  friend struct RmsNormFunction;
  friend struct AddRmsNormFunction;

  double eps_;
  Kernels kernels_;
  int64_t token_split_;  // ranks over which the tokens are split
  Parameter* weight_;
};

}  // namespace megalith
