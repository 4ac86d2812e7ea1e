// The activations that expert_activation knows, without torch's headers: kernel files include this file.
#pragma once

namespace megalith::ops {

enum class ActivationKind {
  kSilu,         // v / (1 + exp(-v)); gated: SwiGLU
  kGelu,         // v P(N < v) for a standard normal N
  kGeluTanh,     // the same by a tanh: GPT-2's form
  kSquaredRelu,  // max(v, 0)^2
  kQuickGelu,    // v / (1 + exp(-1.702 v)), only gated: gpt-oss, on every device by the reference
  kRelu,         // max(v, 0), on every device by the reference
};

struct ExpertActivation {
  ActivationKind kind = ActivationKind::kSilu;
  bool is_gated = true;
  // Only of kQuickGelu.
  bool is_interleaved = false;  // x is [gate 0, up 0, gate 1, up 1, …] in the place of [gate | up]
  double up_offset = 0;         // up counts as up + this
  double limit = 0;             // gate is at most this, and up between minus and plus it; 0: no limits
};

}  // namespace megalith::ops
