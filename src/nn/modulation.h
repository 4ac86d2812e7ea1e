// Adaptive normalisation: a vector per sample gives its norms' shift and scale, and its blocks' gates.
//
//   [shift | scale | gate | …] = Linear(SiLU(vec))            a Modulation, initially zero
//   y = LayerNorm(x) (1 + scale) + shift                      without weights of its own
//   x = x + gate y
//
// Source: arXiv:2212.09748, section 3.2 (adaLN-Zero).
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
  Modulation(const LayerContext& context, const std::string& name, int64_t hidden, int64_t count);

  // vec (b, h) -> count of (b, h), on all tp ranks, which sum gradients under sequence parallelism.
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
  bool is_recomputed = false;  // keeps only x
};

// x (t, h), shift and scale (b, h) -> (t, h). In float32, rounded once.
Activation modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                          const ModulatedNorm& form);

// x (t, h) + gate (b, h) * y (t, h).
at::Tensor gated_sum(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

}  // namespace megalith
