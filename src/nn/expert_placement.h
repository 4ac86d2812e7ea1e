// Where a rank's part of a layer's experts lies in the canonical tensors: one for each expert and linear layer, or one
// for all experts of a layer (gpt-oss).
#pragma once

#include <cstdint>
#include <string>

#include "nn/placement.h"

namespace megalith {

// What stands in canonical names below the layer's ("model.layers.0.mlp").
struct ExpertNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of experts.E.
  // Where files keep all experts of a layer in one: (e, h, 2f) of gates and ups in turn, or of gates in front, and
  // (e, f, h), both below experts.; their biases are (e, 2f) and (e, h), with `_bias` behind the name. Empty: each by
  // itself, as above.
  std::string stacked_gate_up = {}, stacked_down = {};
  bool are_interleaved = false;
  std::string router = "gate", bias = "gate.e_score_correction_bias", shared = "shared_experts";

  bool are_stacked() const { return !stacked_gate_up.empty(); }
};

// What a rank of ep and etp has of the experts.
struct ExpertCut {
  std::string name;  // "model.layers.0.mlp.experts"
  int64_t num_experts, first_expert, num_local;
  int64_t ffn, first_column, num_columns;  // of an expert's width
  int64_t hidden;
  // Each part of an expert adds its own columns of the bias of `down` to its part of the sum.
  int64_t first_bias_column, num_bias_columns;
  bool is_gated;
};

// up    (num_local * 2 num_columns, h), an expert's gate above its up, or only up; stacked: (num_local, 2 num_columns,
//       h), a gate's row and the up's in turn
// down  (num_local * h, num_columns); stacked: (num_local, h, num_columns)
// Biases likewise, without the last dim. No axes are set.
struct ExpertPlacements {
  Placement up, down, up_bias, down_bias;
};
ExpertPlacements expert_placements(const ExpertCut& cut, const ExpertNames& names);

}  // namespace megalith
