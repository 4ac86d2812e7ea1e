// The activation of MLPs and experts.
#pragma once

#include <optional>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

struct MlpOptions {
  bool swiglu = false, geglu = false, quick_geglu = false;  // gated
  double glu_linear_offset = 0;                             // both of quick_geglu
  std::optional<double> activation_func_clamp_value;
  bool squared_relu = false, relu = false, openai_gelu = false;
  bool bias_gelu_fusion = true;  // Megatron's: see LayerOptions::activation()

  void visit_mlp(OptionVisitor& v);

  bool is_gated() const { return swiglu || geglu || quick_geglu; }
};

void check_mlp(const MlpOptions& options, std::vector<UserError>& errors);

}  // namespace megalith
