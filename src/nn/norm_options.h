// How a transformer normalises; the layer is nn/norm.h.
#pragma once

#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class Normalization { kLayerNorm, kRmsNorm };

struct NormOptions {
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // what is kept is the weight less 1; only for kLayerNorm

  void visit_norm(OptionVisitor& v);
};

void check_norm(const NormOptions& options, std::vector<UserError>& errors);

}  // namespace megalith
