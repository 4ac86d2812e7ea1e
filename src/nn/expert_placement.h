// Maps a rank's experts to canonical tensors: one per expert and linear, or one per layer (gpt-oss).
#pragma once

#include <cstdint>
#include <string>

#include "nn/placement.h"

namespace megalith {

// Below the layer's name.
struct ExpertNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // below experts.E.
  // Set if files stack a layer's experts: (e, h, 2f), gates and ups interleaved or gates first, and (e, f, h), both
  // below experts.; biases (e, 2f) and (e, h), with `_bias` appended.
  std::string stacked_gate_up = {}, stacked_down = {};
  bool are_interleaved = false;
  std::string router = "gate", bias = "gate.e_score_correction_bias", shared = "shared_experts";

  bool are_stacked() const { return !stacked_gate_up.empty(); }
};

struct ExpertCut {
  std::string name;  // "model.layers.0.mlp.experts"
  int64_t num_experts, first_expert, num_local;
  int64_t ffn, first_column, num_columns;  // of an expert's width
  int64_t hidden;
  // Ranks add different columns of the down bias.
  int64_t first_bias_column, num_bias_columns;
  bool is_gated;
};

// up    (num_local * 2 num_columns, h), an expert's gate above its up, or only up; stacked: (num_local, 2 num_columns,
//       h), as in the file
// down  (num_local * h, num_columns); stacked: (num_local, h, num_columns)
// Biases likewise, without the last dim. No axes are set.
struct ExpertPlacements {
  Placement up, down, up_bias, down_bias;
};
ExpertPlacements expert_placements(const ExpertCut& cut, const ExpertNames& names);

}  // namespace megalith
