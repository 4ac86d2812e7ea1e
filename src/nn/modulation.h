// Adaptive normalisation: a vector of each sample says by what its tokens' norms are scaled and shifted, and how much a
// block adds to its tokens.
//
//   [shift | scale | gate | …] = Linear(SiLU(vec))            a Modulation; it begins with zeros
//   y = LayerNorm(x) (1 + scale) + shift                      without weights of its own
//   x = x + gate y
//
// b samples of s tokens, t = b s, h channels. Under sequence parallelism s is this rank's share of every sample.
// Source: Peebles & Xie 2023, arXiv:2212.09748, section 3.2 (adaLN-Zero).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/kept.h"
#include "nn/linear.h"
#include "nn/module.h"

namespace megalith {

class Modulation : public Module {
 public:
  // name   of the linear layer: "transformer_blocks.0.norm1.linear"
  // count  of vectors of h that it gives
  // UserError when tp does not divide count * h.
  Modulation(const LayerContext& context, const std::string& name, int64_t hidden, int64_t count);

  // vec (b, h) -> count vectors (b, h) each, the same on all tp ranks, each of which computes a part of them. Under
  // sequence parallelism each rank brings the gradient of its own tokens, and they are summed.
  std::vector<at::Tensor> forward(const at::Tensor& vec);

 protected:
  CostShape shape_of(const Module& /*child*/, const CostShape& shape) const override { return {.b = shape.b, .s = 1}; }

 private:
  int64_t hidden_;
  Group* tp_;
  bool is_sequence_parallel_;
  Linear linear_;
};

struct ModulatedNorm {
  double epsilon = 1e-6;
  Kernels kernels = Kernels::kFused;
  bool is_recomputed = false;  // only x is kept of the result
};

// x (t, h), shift and scale (b, h) -> (t, h); differentiable by all three. Computed in float32 and rounded once.
Activation modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                          const ModulatedNorm& form);

// x (t, h) + gate (b, h) * y (t, h), differentiable.
at::Tensor gated_sum(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

}  // namespace megalith
