// Normalisation layers (ops/rms_norm, ops/layer_norm).
#pragma once

#include <string>
#include <vector>

#include "nn/kept.h"
#include "nn/module.h"
#include "nn/norm_options.h"

namespace megalith {

// A sum whose addition can fuse with the next norm.
struct ResidualStream {
  at::Tensor delta;
  at::Tensor residual;  // undefined before the first block

  at::Tensor sum() const;  // differentiable
};

class Norm : public Module {
 public:
  // name: without `.weight` and `.bias`. hidden: h; for head norms, channels per head. num_heads: this rank's heads,
  // normed separately with one weight, whose gradient is summed over tp; 0: whole tokens.
  Norm(const LayerContext& context, const std::string& name, int64_t hidden, const NormOptions& options,
       int64_t num_heads = 0);

  // x (t, h) or (t * heads, h).
  at::Tensor forward(const Activation& x);
  // Norm of the sum, which becomes the residual.
  at::Tensor forward(ResidualStream& stream);

  // From x; after forward(stream), from the residual.
  Kept again(Kept x) const;

  Parameter& weight() { return *weight_; }

 private:
  friend struct NormFunction;
  friend struct AddNormFunction;

  // statistics: reciprocal deviation, preceded by the mean with kLayerNorm.
  struct Normalised {
    at::Tensor y;
    std::vector<at::Tensor> statistics;
  };
  Normalised normalise(const at::Tensor& x) const;
  // A weight stored minus 1 is completed in its own dtype, losing bits below 2^-8 in bf16; LayerNorm's operator does
  // this itself.
  at::Tensor rms_weight() const;
  at::Tensor differentiate(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                           c10::ArrayRef<at::Tensor> statistics) const;

  NormOptions options_;
  Kernels kernels_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith
