// A model's parameters by what they are: the family's canonical tensors under the names that a decoder or a BERT with
// Llama's names has, which other trainers' tables are written against ("model.layers.0.self_attn.qkv_proj.weight").
// Encoder-decoders have their own ("decoder.block.0.layer.1.EncDecAttention.kv_proj.weight").
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "nn/placement.h"

namespace megalith {

class CanonicalModel {
 public:
  // UserErrors of check_model_config().
  explicit CanonicalModel(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  // Null if the model has none.
  const Placement* find(std::string_view name) const;
  // In the order of the layers.
  const std::vector<const Placement*>& placements() const { return placements_; }
  // A canonical tensor by its name or an alias (a tied head's); null if the model has none.
  const Piece* piece(std::string_view name) const;

 private:
  ModelConfig config_;
  std::map<std::string, Placement, std::less<>> parameters_;
  std::vector<const Placement*> placements_;
  std::map<std::string, const Piece*, std::less<>> pieces_;
};

}  // namespace megalith
