// What OLMo 2 and 3 share; see olmo.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/hf_config.h"
#include "models/model_config.h"

namespace megalith::olmo {

// The keys of both classes: Llama's, with norms behind attention and the MLP in the place of those in front, and a norm
// of all queries of a token and of all its keys.
ModelConfig read(const nlohmann::json& json, const HfDefaults& defaults);
nlohmann::json write(const ModelConfig& config, at::ScalarType dtype, std::string_view hf_class,
                     std::string_view hf_model_type);

}  // namespace megalith::olmo
