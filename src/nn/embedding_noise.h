// NEFTune: uniform noise in the embeddings while a model is trained.
//
//   y = x + m u,   m = alpha / sqrt(L h),   u uniform in [-1, 1)
//
// L tokens of a whole row, padding included, and h channels. u is drawn by (seed, name, global row, column), so every
// layout, recomputation and resumed run adds the same. Source: Jain et al. 2023, arXiv:2310.05914, with transformers'
// L.
#pragma once

#include <string>

#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class EmbeddingNoise {
 public:
  // alpha: LayerContext::embedding_noise. name: keys the noise, with the seed.
  EmbeddingNoise(const LayerContext& context, const std::string& name);

  // x (t', h). Returns x if alpha is 0 or not training.
  at::Tensor forward(const at::Tensor& x, const ForwardContext& forward) const;

 private:
  double alpha_;
  uint64_t key_;
  Kernels kernels_;
  int tp_rank_;
};

}  // namespace megalith
