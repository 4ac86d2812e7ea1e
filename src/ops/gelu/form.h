// Without torch's headers.
#pragma once

namespace megalith::ops {

enum class GeluForm {
  kTanh,   // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GPT-2's, Megatron's fused
  kErf,    // x P(x), P the standard normal distribution
  kQuick,  // x sigmoid(1.702 x): CLIP's
};

}  // namespace megalith::ops
