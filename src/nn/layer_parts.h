// The two parts of a transformer layer: one attends (attention.h, latent_attention.h), one transforms each token by
// itself (mlp.h, moe_layer.h).
#pragma once

#include "nn/forward.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rotary_embedding.h"

namespace megalith {

class AttentionLayer : public Module {
 public:
  // x (t', h) -> (t', h) as in nn/forward.h, differentiable. Undefined angles: no rotation. With a KV cache
  // (generation, no gradients) x's keys and values are appended, and all positions so far attended to. If
  // context-parallel ranks share a sequence, x is this rank's part and attends to all parts.
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) = 0;
};

class FeedForward : public Module {
 public:
  // x (t', h) -> (t', h), differentiable.
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward) = 0;
};

}  // namespace megalith
