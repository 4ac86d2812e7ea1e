// Dropout of the hidden activations, by layer and token: the same elements under every layout (ops/dropout).
#pragma once

#include <string>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

// x (t, columns) with elements dropped, differentiable; ops/dropout says which, by row_ids (t) and the number in the
// whole tensor of its first column.
at::Tensor dropped(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key,
                   Kernels kernels);

class HiddenDropout {
 public:
  // name  of the place in the model ("model.layers.0.mlp"); with the seed it gives the key
  HiddenDropout(const LayerContext& context, const std::string& name, double p);

  // x (t, h), or this rank's (t / tp, h) under sequence parallelism. Returns x when p is 0 or not training.
  at::Tensor forward(const at::Tensor& x, const ForwardContext& forward) const;

 private:
  double p_;
  uint64_t key_;
  Kernels kernels_;
  int tp_rank_;
};

}  // namespace megalith
