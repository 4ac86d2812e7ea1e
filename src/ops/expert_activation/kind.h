// The activations of expert_activation, without torch's headers, for kernel files.
#pragma once

namespace megalith::ops {

enum class ActivationKind {
  kSilu,         // v / (1 + exp(-v)); gated: SwiGLU
  kGelu,         // v P(N < v) for a standard normal N
  kGeluTanh,     // its tanh form: GPT-2's
  kSquaredRelu,  // max(v, 0)^2
  kQuickGelu,    // v / (1 + exp(-1.702 v)), only gated: gpt-oss; always by the reference
  kRelu,         // max(v, 0); always by the reference
};

struct ExpertActivation {
  ActivationKind kind = ActivationKind::kSilu;
  bool is_gated = true;
  // Only for kQuickGelu.
  bool is_interleaved = false;  // x is [gate 0, up 0, gate 1, up 1, …] instead of [gate | up]
  double up_offset = 0;         // added to up
  double limit = 0;             // gate is at most this, and up within plus and minus it; 0: no limits
};

}  // namespace megalith::ops
