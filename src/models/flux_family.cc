// FLUX.1's dictionary between diffusers' transformer/config.json and ours, and its family rows.
// Source: diffusers, models/transformers/transformer_flux.py (FluxTransformer2DModel).
#include "core/error.h"
#include "models/families.h"
#include "models/flux.h"
#include "models/hf_rows.h"
#include "nn/option_rules.h"

namespace megalith {

namespace flux {
namespace {

constexpr const char* kClass = "FluxTransformer2DModel";

void read_head_dim(const Json& file, ModelConfig& config) {
  config.hidden_size = config.num_attention_heads * hf_integer(file, "attention_head_dim", 128, kMostWidth);
}

void check_out_channels(const Json& file, ModelConfig& config) {
  const auto out = json_find<int64_t>(file, "out_channels", kHfConfigFile);
  if (!out || *out == config.in_channels) return;
  throw UserError(fmt::format("{}: out_channels is {} and in_channels {}", kHfConfigFile, *out, config.in_channels),
                  "only models that give what they read can be loaded: FLUX.1 dev and schnell, not fill or depth");
}

Json written_out_channels(const ModelConfig& config) {
  const FluxOptions defaults;
  if (config.theta == defaults.theta && config.model_channels == defaults.model_channels) return nullptr;
  throw UserError(fmt::format("theta {} and model_channels {} have no form in {} of this family", config.theta,
                              config.model_channels, kHfConfigFile),
                  "diffusers' class has 10000 and 256");
}

HfRows rows() {
  return HfRows()
      .field("num_layers", &ModelConfig::num_joint_layers, 19)
      .field("num_single_layers", &ModelConfig::num_single_layers, 38)
      .field("in_channels", &ModelConfig::in_channels, 64)
      .field("num_attention_heads", &ModelConfig::num_attention_heads, 24)
      .custom("attention_head_dim", read_head_dim,
              [](const ModelConfig& config) { return config.hidden_size / config.num_attention_heads; })
      .field("joint_attention_dim", &ModelConfig::context_dim, 4096)
      .field("pooled_projection_dim", &ModelConfig::vec_in_dim, 768)
      .field("patch_size", &ModelConfig::patch_size, 1)
      .field("guidance_embeds", &ModelConfig::guidance_embed, false)
      .field("axes_dims_rope", &ModelConfig::axes_dim, std::vector<int64_t>{16, 56, 56})
      .custom("out_channels", check_out_channels, written_out_channels);
}

}  // namespace
}  // namespace flux

extern const ModelFamily kFlux = {.name = "flux",
                                  .model_type = ModelType::kDiffusion,
                                  .hf_model_type = flux::kClass,
                                  .hf_class = flux::kClass,
                                  .hf_rows = flux::rows,
                                  .units = flux_units,
                                  .build = build_flux};

// For models that diffusers' class cannot express; same names.
extern const ModelFamily kFluxLike = {
    .name = "flux_like", .model_type = ModelType::kDiffusion, .units = flux_units, .build = build_flux};

}  // namespace megalith
