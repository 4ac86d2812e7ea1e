// The choice of norm (norm.h).
#pragma once

#include "config/option.h"

namespace megalith {

enum class Normalization { kLayerNorm, kRmsNorm };

// Before attention and the MLP, after them, both, or of the stream's sums with their results.
enum class NormPlacement { kPre, kPost, kSandwich, kPostLn };

struct NormOptions {
  Normalization normalization = Normalization::kLayerNorm;
  NormPlacement norm_placement = NormPlacement::kPre;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // stores the weight minus 1

  void visit_norm(OptionVisitor& v);

  bool has_norms_in_front() const {
    return norm_placement == NormPlacement::kPre || norm_placement == NormPlacement::kSandwich;
  }
  bool has_norms_behind() const { return norm_placement != NormPlacement::kPre; }
  // Streams leave layers normed; no final norm.
  bool norms_sums() const { return norm_placement == NormPlacement::kPostLn; }
};

}  // namespace megalith
