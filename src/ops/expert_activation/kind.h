// The functions that expert_activation knows, without torch's headers: kernel files include this file.
#pragma once

namespace megalith::ops {

enum class ActivationKind {
  kSilu,         // v / (1 + exp(-v)); gated: SwiGLU
  kGelu,         // v P(N < v) for a standard normal N
  kGeluTanh,     // the same by a tanh: GPT-2's form
  kSquaredRelu,  // max(v, 0)^2
};

}  // namespace megalith::ops
