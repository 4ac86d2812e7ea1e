// Interfaces of a layer's two parts.
#pragma once

#include "nn/forward.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/rotary_embedding.h"

namespace megalith {

// Mixes tokens: attention, or a convolution.
class Mixer : public Module {
 public:
  // x (t', h) -> (t', h). Undefined angles: no rotation. A KV cache (no gradients) gets x's keys and values, and all
  // its positions are attended to. If cp ranks share a sequence, this rank's part attends to all.
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward, const RotaryAngles& angles) = 0;
};

class FeedForward : public Module {
 public:
  // x (t', h) -> (t', h).
  virtual at::Tensor forward(const Activation& x, const ForwardContext& forward) = 0;
};

}  // namespace megalith
