// The activation of MLPs and of experts (nn/mlp.h, nn/moe_layer.h).
#pragma once

#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct MlpOptions {
  bool swiglu = false, geglu = false;  // gated
  bool squared_relu = false, openai_gelu = false;
  bool bias_gelu_fusion = true;  // Megatron's: it changes the form of GELU; read LayerOptions::activation()

  void visit_mlp(OptionVisitor& v);

  bool is_gated() const { return swiglu || geglu; }
};

void check_mlp(const MlpOptions& options, std::vector<UserError>& errors);

}  // namespace megalith
