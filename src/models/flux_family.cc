// FLUX.1's dictionary between the config.json of diffusers' transformer folder and ours, and its rows among families.
// Source: diffusers, models/transformers/transformer_flux.py (FluxTransformer2DModel).
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/flux.h"
#include "models/hf_config.h"

namespace megalith {

namespace flux {
namespace {

constexpr const char* kClass = "FluxTransformer2DModel";

ModelConfig from_hf(const Json& json) {
  ModelConfig config;
  const auto integer = [&](std::string_view key, int64_t otherwise) {
    return json_get_or<int64_t>(json, key, otherwise, kHfConfigFile);
  };
  config.model_type = ModelType::kDiffusion;
  config.num_joint_layers = integer("num_layers", 19);
  config.num_single_layers = integer("num_single_layers", 38);
  config.in_channels = integer("in_channels", 64);
  config.num_attention_heads = integer("num_attention_heads", 24);
  const int64_t head_dim = integer("attention_head_dim", 128);
  config.context_dim = integer("joint_attention_dim", 4096);
  config.vec_in_dim = integer("pooled_projection_dim", 768);
  config.patch_size = integer("patch_size", 1);
  check_hf_sizes({config.num_joint_layers, config.num_single_layers, config.in_channels, config.num_attention_heads,
                  head_dim, config.context_dim, config.vec_in_dim, config.patch_size});
  config.hidden_size = config.num_attention_heads * head_dim;
  config.guidance_embed = json_get_or<bool>(json, "guidance_embeds", false, kHfConfigFile);
  config.axes_dim = json_get_or<std::vector<int64_t>>(json, "axes_dims_rope", {16, 56, 56}, kHfConfigFile);
  if (const auto out = json_find<int64_t>(json, "out_channels", kHfConfigFile); out && *out != config.in_channels) {
    throw UserError(fmt::format("{}: out_channels is {} and in_channels {}", kHfConfigFile, *out, config.in_channels),
                    "only models that give what they read can be loaded: FLUX.1 dev and schnell, not fill or depth");
  }
  return config;
}

Json to_hf(const ModelConfig& config, at::ScalarType /*dtype*/) {
  const FluxOptions defaults;
  if (config.theta != defaults.theta || config.model_channels != defaults.model_channels) {
    throw UserError(fmt::format("theta {} and model_channels {} have no form in {} of this family", config.theta,
                                config.model_channels, kHfConfigFile),
                    "diffusers' class has 10000 and 256");
  }
  return {
      {"_class_name", kClass},
      {"_diffusers_version", "0.35.2"},
      {"patch_size", config.patch_size},
      {"in_channels", config.in_channels},
      {"out_channels", nullptr},
      {"num_layers", config.num_joint_layers},
      {"num_single_layers", config.num_single_layers},
      {"attention_head_dim", config.hidden_size / config.num_attention_heads},
      {"num_attention_heads", config.num_attention_heads},
      {"joint_attention_dim", config.context_dim},
      {"pooled_projection_dim", config.vec_in_dim},
      {"guidance_embeds", config.guidance_embed},
      {"axes_dims_rope", config.axes_dim},
  };
}

}  // namespace
}  // namespace flux

extern const ModelFamily kFlux, kFluxLike;
const ModelFamily kFlux = {.name = "flux",
                           .model_type = ModelType::kDiffusion,
                           .hf_model_type = flux::kClass,
                           .hf_class = flux::kClass,
                           .from_hf = flux::from_hf,
                           .to_hf = flux::to_hf,
                           .units = flux_units,
                           .build = build_flux};

// What flags describe and diffusers' class does not say; the names are the same.
const ModelFamily kFluxLike = {.name = "flux_like",
                               .model_type = ModelType::kDiffusion,
                               .hf_model_type = "",
                               .hf_class = "",
                               .from_hf = nullptr,
                               .to_hf = nullptr,
                               .units = flux_units,
                               .build = build_flux};

}  // namespace megalith
