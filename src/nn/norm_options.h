// How a transformer normalises; the layer is nn/norm.h.
#pragma once

#include "config/option.h"

namespace megalith {

enum class Normalization { kLayerNorm, kRmsNorm };

// Where the norms of a layer stand: in front of attention and the MLP, behind them, on both sides, or around the sums
// of the stream and what they add to it.
enum class NormPlacement { kPre, kPost, kSandwich, kPostLn };

struct NormOptions {
  Normalization normalization = Normalization::kLayerNorm;
  NormPlacement norm_placement = NormPlacement::kPre;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;  // what is kept is the weight less 1

  void visit_norm(OptionVisitor& v);

  bool has_norms_in_front() const {
    return norm_placement == NormPlacement::kPre || norm_placement == NormPlacement::kSandwich;
  }
  bool has_norms_behind() const { return norm_placement != NormPlacement::kPre; }
  // Then the stream leaves every layer normed, and there is no final norm.
  bool norms_sums() const { return norm_placement == NormPlacement::kPostLn; }
};

}  // namespace megalith
