#include "nn/mlp_options.h"

namespace megalith {

void MlpOptions::visit_mlp(OptionVisitor& v) {
  v.field("swiglu", swiglu, "Gated MLP with SiLU instead of GELU.");
  v.field("geglu", geglu, "Gated MLP with GELU, computed by a tanh (Gemma).");
  v.field("quick_geglu", quick_geglu,
          "Gated MLP with GELU computed as x * sigmoid(1.702 * x) (gpt-oss). On every device the activation is the "
          "reference operator.");
  v.field("glu_linear_offset", glu_linear_offset,
          "With quick_geglu: added to what the gates are multiplied with (gpt-oss: 1).");
  v.field("activation_func_clamp_value", activation_func_clamp_value,
          "With quick_geglu: the gates' input is at most this, and what they are multiplied with is between minus and "
          "plus this (gpt-oss: 7). Default: no limits.")
      .above(0);
  v.field("squared_relu", squared_relu, "Squared ReLU instead of GELU.");
  v.field("relu", relu, "ReLU instead of GELU (T5). On every device the activation is the reference operator.");
  v.field("openai_gelu", openai_gelu, "Compute GELU by a tanh, whatever bias_gelu_fusion says.")
      .always(kPictureModels, "true");
  v.field("bias_gelu_fusion", bias_gelu_fusion,
          "Chooses GELU's formula only, because operators are always fused. As in Megatron-LM, GELU is computed by a "
          "tanh (GPT-2's form) with it, and by the error function without it or without biases.");
}

void check_mlp(const MlpOptions& options, std::vector<UserError>& errors) {
  const int chosen = (options.swiglu ? 1 : 0) + (options.geglu ? 1 : 0) + (options.quick_geglu ? 1 : 0) +
                     (options.squared_relu ? 1 : 0) + (options.relu ? 1 : 0) + (options.openai_gelu ? 1 : 0);
  if (chosen > 1) {
    errors.emplace_back("more than one of swiglu, geglu, quick_geglu, squared_relu, relu and openai_gelu is on",
                        "keep one of them");
  }
  if (!options.quick_geglu && (options.glu_linear_offset != 0 || options.activation_func_clamp_value)) {
    errors.emplace_back(
        fmt::format("{} is given, and quick_geglu is off",
                    options.glu_linear_offset != 0 ? "glu_linear_offset" : "activation_func_clamp_value"),
        "set quick_geglu to true, or leave it away");
  }
}

}  // namespace megalith
