// Gemma 2: gated GELU, norms on both sides of attention and the MLP, soft-capped scores and logits, a window in every
// other layer. Gemma 3 (text): uncapped scores, norms of query and key heads, and five windowed layers, with a rotary
// base of their own, to each global one.
// Source: Gemma team 2024, arXiv:2408.00118; Gemma team 2025, arXiv:2503.19786.
#include <cmath>

#include "core/error.h"
#include "models/families.h"
#include "models/hf_shared_rows.h"

namespace megalith {

namespace gemma {
namespace {

// The class's base for windowed layers, when absent.
constexpr double kDefaultLocalBase = 10000;

Json query_scalar(const ModelConfig& config) {
  const double scalar = config.query_pre_attn_scalar.value_or(static_cast<double>(config.query_head_dim()));
  return scalar == std::floor(scalar) ? Json(static_cast<int64_t>(scalar)) : Json(scalar);
}

// Norms store their weights minus 1.
HfRows shared_rows(int64_t longest) {
  const auto gates = [](const ModelConfig& config) { return config.geglu ? "gelu_pytorch_tanh" : "silu"; };
  return hf_decoder_rows()
      .fixed("attention_bias", false, "biases in Gemma's attention are not provided")
      .opposite("tie_word_embeddings", &ModelConfig::untie_embeddings_and_output_weights, true)
      .field("max_position_embeddings", &ModelConfig::max_position_embeddings, longest)
      .field("head_dim", &ModelConfig::kv_channels, 256, &ModelConfig::query_head_dim)
      .field("query_pre_attn_scalar", &ModelConfig::query_pre_attn_scalar, 256.0, query_scalar)
      .written("hidden_act", gates)
      .fixed("hidden_activation", "gelu_pytorch_tanh", "this family's MLP has gates of GELU by a tanh", gates)
      .always(&ModelConfig::swiglu, false)
      .always(&ModelConfig::geglu, true)
      .always(&ModelConfig::norm_placement, NormPlacement::kSandwich)
      .always(&ModelConfig::apply_layernorm_1p, true)
      .always(&ModelConfig::scale_embeddings, true);
}

HfRows rows_of_2() {
  return shared_rows(8192)
      .join(hf_windowed_layers_rows(4096, 2))
      .nullable("attn_logit_softcapping", &ModelConfig::attn_logit_softcapping, 50.0, 0.0)
      .nullable("final_logit_softcapping", &ModelConfig::final_logit_softcapping, 30.0, 0.0);
}

// Version 5 keeps each layer kind's rotation in rope_parameters; version 4 has the global layers' in the usual keys,
// with the local base beside them.
Json in_version_4(const Json& file) {
  constexpr std::string_view kWhere = "config.json: rope_parameters";
  const Json* parameters = find_member(file, "rope_parameters", kHfConfigFile);
  const Json* whole = parameters == nullptr ? nullptr : find_member(*parameters, "full_attention", kWhere);
  if (whole == nullptr) return hf_in_version_4(file);
  Json flat = file;
  flat["rope_parameters"] = *whole;
  if (const Json* local = find_member(*parameters, "sliding_attention", kWhere)) {
    flat["rope_local_base_freq"] = json_get_or<double>(*local, "rope_theta", kDefaultLocalBase, kWhere);
  }
  return hf_in_version_4(flat);
}

void read_local_base(const Json& file, ModelConfig& config) {
  if (config.attention_window() == 0) return;
  config.rotary_base_local = json_get_or<double>(file, "rope_local_base_freq", kDefaultLocalBase, kHfConfigFile);
}

double local_base(const ModelConfig& config) {
  if (!config.has_windows() || config.rotary_base_local || !config.is_stretched()) {
    return config.rotary_base_local.value_or(config.rotary_base);
  }
  throw UserError(fmt::format("layers with a window whose wavelengths are stretched have no form in {}", kHfConfigFile),
                  "set rotary_base_local");
}

HfRows rows_of_3() {
  return shared_rows(131072)
      .prepare(in_version_4)
      .fixed("attn_logit_softcapping", nullptr, "the class does not cap scores")
      .fixed("use_bidirectional_attention", false, "attention in both directions is not provided here")
      .field("rope_theta", &ModelConfig::rotary_base, 1e6)
      .join(hf_rope_rows({"llama3", "linear"}))
      .join(hf_windowed_layers_rows(4096, 6, "sliding_window_pattern"))  // files before layer_types have it
      .custom("rope_local_base_freq", read_local_base, local_base)
      .nullable("final_logit_softcapping", &ModelConfig::final_logit_softcapping, 0.0, 0.0)
      .always(&ModelConfig::qk_layernorm, true);
}

}  // namespace
}  // namespace gemma

extern const ModelFamily kGemma2 = {.name = "gemma2",
                                    .hf_model_type = "gemma2",
                                    .hf_class = "Gemma2ForCausalLM",
                                    .hf_rows = gemma::rows_of_2};
extern const ModelFamily kGemma3 = {.name = "gemma3",
                                    .hf_model_type = "gemma3_text",
                                    .hf_class = "Gemma3ForCausalLM",
                                    .hf_rows = gemma::rows_of_3};

}  // namespace megalith
