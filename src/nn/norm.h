// Normalisation as a layer, by root mean square (ops/rms_norm) or by mean and variance (ops/layer_norm), by
// itself and fused with the residual addition before it.
#pragma once

#include <string>
#include <vector>

#include "nn/kept.h"
#include "nn/module.h"
#include "nn/norm_options.h"

namespace megalith {

// The residual stream between two blocks: the sum so far, and what the last block adds to it. Keeping them apart lets
// the addition fuse with the norm that follows.
struct ResidualStream {
  at::Tensor delta;     // (t, h)
  at::Tensor residual;  // (t, h); undefined before the first addition

  at::Tensor sum() const;  // differentiable
};

class Norm : public Module {
 public:
  // name       canonical, without `.weight` and, with kLayerNorm, `.bias`
  // hidden     h; channels of a head, where heads are normed
  // num_heads  rows of a token: heads of this rank, whose channels are normed each by themselves with one weight. tp
  //            ranks have heads of their own, so the gradient is a sum over tp. 0: whole tokens, one row each.
  // UserError when the options do not fit one another.
  Norm(const LayerContext& context, const std::string& name, int64_t hidden, const NormOptions& options,
       int64_t num_heads = 0);

  // x (t, h) -> (t, h), differentiable; of heads (t * heads, h)
  at::Tensor forward(const Activation& x);
  // Adds delta to the residual and returns the norm of the sum; the stream keeps the sum as its residual.
  at::Tensor forward(ResidualStream& stream);

  // The norm of x, computed again. What forward gave for a stream is that of the residual it left there.
  Kept again(Kept x) const;

  Parameter& weight() { return *weight_; }

 private:
  friend struct NormFunction;
  friend struct AddNormFunction;

  // What backward needs beside x: the reciprocal deviation, and with kLayerNorm the mean before it.
  struct Normalised {
    at::Tensor y;
    std::vector<at::Tensor> statistics;
  };
  Normalised normalise(const at::Tensor& x) const;
  // What an RMSNorm multiplies with. A weight that is kept less 1 is completed in its own dtype, which in bf16 rounds
  // what lies below 2^-8; LayerNorm's operator does that itself.
  at::Tensor rms_weight() const;
  at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                           c10::ArrayRef<at::Tensor> statistics) const;

  NormOptions options_;
  Kernels kernels_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith
