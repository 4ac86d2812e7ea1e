// What a transformer layer consists of, as the layer sees it: something that attends, and something that transforms
// each token by itself. Their forms stand in their own files (attention.h, latent_attention.h; mlp.h, moe_layer.h).
#pragma once

#include "nn/forward.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rotary_embedding.h"

namespace megalith {

class AttentionLayer : public Module {
 public:
  // x (t, h) -> (t, h), differentiable. angles: undefined tables mean no rotation. With a KV cache (generation, no
  // gradients) the keys and values of x are appended to it and all positions so far are attended to. When
  // context-parallel ranks share a sequence, x is this rank's part, and it attends to the other ranks' parts too.
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) = 0;
};

class FeedForward : public Module {
 public:
  // x (t, h) -> (t, h), differentiable; under sequence parallelism both are this rank's t / tp tokens.
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward) = 0;
};

}  // namespace megalith
