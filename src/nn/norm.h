// Normalisation layers (ops/rms_norm, ops/layer_norm), also fused with the preceding residual addition.
#pragma once

#include <string>
#include <vector>

#include "nn/kept.h"
#include "nn/module.h"
#include "nn/norm_options.h"

namespace megalith {

// The residual stream between two blocks, its sum and addend apart, so the addition can fuse with the next norm.
struct ResidualStream {
  at::Tensor delta;     // (t, h)
  at::Tensor residual;  // (t, h); undefined before the first addition

  at::Tensor sum() const;  // differentiable
};

class Norm : public Module {
 public:
  // name       canonical, without `.weight` and, with kLayerNorm, `.bias`
  // hidden     h; for head norms, channels per head
  // num_heads  rows per token: this rank's heads, normed separately with one weight, whose gradient is summed over tp;
  //            0: whole tokens
  // UserError if options conflict.
  Norm(const LayerContext& context, const std::string& name, int64_t hidden, const NormOptions& options,
       int64_t num_heads = 0);

  // x (t, h) -> (t, h), differentiable; for heads (t * heads, h)
  at::Tensor forward(const Activation& x);
  // Adds delta to the residual, which becomes the sum, and returns its norm.
  at::Tensor forward(ResidualStream& stream);

  // Recomputes the norm of x; after forward(stream), x is the residual.
  Kept again(Kept x) const;

  Parameter& weight() { return *weight_; }

 private:
  friend struct NormFunction;
  friend struct AddNormFunction;

  // Kept for backward beside x: the reciprocal deviation, preceded with kLayerNorm by the mean.
  struct Normalised {
    at::Tensor y;
    std::vector<at::Tensor> statistics;
  };
  Normalised normalise(const at::Tensor& x) const;
  // RMSNorm's factor. A weight stored minus 1 is completed in its own dtype, losing bits below 2^-8 in bf16;
  // LayerNorm's operator does this itself.
  at::Tensor rms_weight() const;
  at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                           c10::ArrayRef<at::Tensor> statistics) const;

  NormOptions options_;
  Kernels kernels_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith
