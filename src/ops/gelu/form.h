// The forms of GELU. Free of torch's headers: kernels include this file.
#pragma once

namespace megalith::ops {

// The numbers are those of the operators' schemas.
enum class GeluForm {
  kTanh = 0,   // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GPT-2's, Megatron's fused one
  kErf = 1,    // x P(x), P the distribution function of a standard normal variable: the definition
  kQuick = 2,  // x sigmoid(1.702 x): CLIP's
};

}  // namespace megalith::ops
