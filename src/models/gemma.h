// What Gemma 2 and 3 share; see gemma.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/hf_config.h"
#include "models/model_config.h"

namespace megalith::gemma {

struct Defaults {
  int64_t max_position_embeddings;
  HfWindowDefaults window;
  bool allows_linear = false;
};

// The keys of both classes: Llama's, with gated GELU, norms on both sides whose weights are kept less 1, scaled
// embeddings, a scale of scores, and windows in some layers.
ModelConfig read(const nlohmann::json& json, const Defaults& defaults);
nlohmann::json write(const ModelConfig& config, at::ScalarType dtype);

// A cap of logits: null is none, a missing key what the class takes.
double read_softcap(const nlohmann::json& json, std::string_view key, double otherwise);
nlohmann::json softcap_json(double softcap);  // null for none

}  // namespace megalith::gemma
