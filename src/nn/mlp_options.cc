#include "nn/mlp_options.h"

namespace megalith {

void MlpOptions::visit_mlp(OptionVisitor& v) {
  v.field("swiglu", swiglu, "Gated MLP with SiLU instead of GELU.");
  v.field("geglu", geglu, "Gated MLP with GELU, computed by a tanh (Gemma).");
  v.field("squared_relu", squared_relu, "Squared ReLU instead of GELU.");
  v.field("openai_gelu", openai_gelu, "Compute GELU by a tanh, whatever bias_gelu_fusion says.");
  v.field("bias_gelu_fusion", bias_gelu_fusion,
          "Chooses GELU's formula only, because operators are always fused. As in Megatron-LM, GELU is computed by a "
          "tanh (GPT-2's form) with it, and by the error function without it or without biases.");
}

void check_mlp(const MlpOptions& options, std::vector<UserError>& errors) {
  const int chosen = (options.swiglu ? 1 : 0) + (options.geglu ? 1 : 0) + (options.squared_relu ? 1 : 0) +
                     (options.openai_gelu ? 1 : 0);
  if (chosen > 1) {
    errors.emplace_back("more than one of swiglu, geglu, squared_relu and openai_gelu is on", "keep one of them");
  }
}

}  // namespace megalith
