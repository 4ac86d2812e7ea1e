// Dropout of activations, the same in every layout (ops/dropout).
#pragma once

#include <string>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

// x (t, columns); the rest as in ops/dropout.
at::Tensor dropped(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key,
                   Kernels kernels);

class HiddenDropout {
 public:
  // name: keys dropout, with the seed.
  HiddenDropout(const LayerContext& context, const std::string& name, double p);

  // x (t', h). Returns x if p is 0 or not training.
  at::Tensor forward(const at::Tensor& x, const ForwardContext& forward) const;

 private:
  double p_;
  uint64_t key_;
  Kernels kernels_;
  int tp_rank_;
};

}  // namespace megalith
