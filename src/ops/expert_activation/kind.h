// Without torch's headers.
#pragma once

namespace megalith::ops {

enum class ActivationKind {
  kSilu,         // v / (1 + exp(-v)); gated: SwiGLU
  kGelu,         // v P(N < v) for a standard normal N
  kGeluTanh,     // tanh form: GPT-2's
  kSquaredRelu,  // max(v, 0)^2
  kQuickGelu,    // v / (1 + exp(-1.702 v)), gated: gpt-oss; no kernels
  kRelu,         // max(v, 0); no kernels
};

struct ExpertActivation {
  ActivationKind kind = ActivationKind::kSilu;
  bool is_gated = true;
  // For kQuickGelu.
  bool is_interleaved = false;  // [gate 0, up 0, gate 1, up 1, …] instead of [gate | up]
  double up_offset = 0;         // added to up
  double limit = 0;             // maximum of gate and |up|; 0: none
};

}  // namespace megalith::ops
