// The part of Hugging Face's config.json that the Llama-like decoders share, as transformers 4 and 5 write it.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/model_config.h"

namespace megalith {

// What the class of a family takes for a missing key.
struct HfDefaults {
  int64_t max_position_embeddings = 2048;
};

// Sizes, rotary embedding (rope_theta and rope_scaling, or version 5's rope_parameters), tying, special tokens;
// RMSNorm, SwiGLU and rope, no biases, no hidden dropout. UserError names a key that is missing, wrong or cannot be
// honoured.
ModelConfig read_hf_decoder(const nlohmann::json& json, const HfDefaults& defaults);

// The same keys, in version 4's form, which version 5 reads too. UserError for what such a file cannot say.
nlohmann::json write_hf_decoder(const ModelConfig& config, at::ScalarType dtype);

// UserError when the key is there, not null, and differs from `honoured`: "attention_bias is true, …".
void refuse_unless(const nlohmann::json& json, std::string_view key, const nlohmann::json& honoured,
                   std::string_view why);

inline constexpr std::string_view kHfConfigFile = "config.json";

}  // namespace megalith
