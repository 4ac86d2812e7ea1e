// Gemma 3, its text: Gemma 2 without caps, with a norm of each query and key head, and five layers with a window, which
// rotate by a base of their own, for one that sees everything.
// Source: Gemma team 2025, arXiv:2503.19786.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "models/families.h"
#include "models/gemma.h"
#include "models/transformer.h"

namespace megalith {

namespace gemma3 {
namespace {

// The class rotates layers with a window by 10000 where the file says nothing.
constexpr double kDefaultLocalBase = 10000, kDefaultBase = 1e6;

// sliding_window_pattern, which files before layer_types have: every so many layers one sees everything.
std::string skip_freq_of(const nlohmann::json& json) {
  const auto pattern = json_get_or<int64_t>(json, "sliding_window_pattern", 6, kHfConfigFile);
  check_hf_sizes({pattern});
  return std::to_string(pattern);
}

// Version 5 has the rotation of each kind of layer in rope_parameters, version 4 that of layers without a window in the
// usual keys and the other base beside them.
nlohmann::json in_version_4(const nlohmann::json& json) {
  constexpr std::string_view kWhere = "config.json: rope_parameters";
  const Json* parameters = find_member(json, "rope_parameters", kHfConfigFile);
  const Json* whole = parameters == nullptr ? nullptr : find_member(*parameters, "full_attention", kWhere);
  if (whole == nullptr) return json;
  nlohmann::json flat = json;
  flat["rope_parameters"] = *whole;
  if (const Json* local = find_member(*parameters, "sliding_attention", kWhere)) {
    flat["rope_local_base_freq"] = json_get_or<double>(*local, "rope_theta", kDefaultLocalBase, kWhere);
  }
  return flat;
}

ModelConfig from_hf(const nlohmann::json& file) {
  const nlohmann::json json = in_version_4(file);
  refuse_unless(json, "attn_logit_softcapping", nullptr, "the class does not cap scores");
  refuse_unless(json, "use_bidirectional_attention", false, "attention in both directions is not provided here");
  const std::string skip_freq = skip_freq_of(json);
  ModelConfig config = gemma::read(
      json,
      {.max_position_embeddings = 131072, .window = {.window = 4096, .skip_freq = skip_freq}, .allows_linear = true});
  const bool says_base = json.contains("rope_theta") || json.contains("rope_parameters");
  if (!says_base) config.rotary_base = kDefaultBase;
  config.qk_layernorm = true;
  config.final_logit_softcapping = gemma::read_softcap(json, "final_logit_softcapping", 0);
  if (config.attention_window() > 0) {
    config.rotary_base_local = json_get_or<double>(json, "rope_local_base_freq", kDefaultLocalBase, kHfConfigFile);
  }
  return config;
}

nlohmann::json to_hf(const ModelConfig& config, at::ScalarType dtype) {
  if (config.has_windows() && !config.rotary_base_local && config.is_stretched()) {
    throw UserError(
        fmt::format("layers with a window whose wavelengths are stretched have no form in {}", kHfConfigFile),
        "set rotary_base_local");
  }
  nlohmann::json json = gemma::write(config, dtype);
  json["architectures"] = {"Gemma3ForCausalLM"};
  json["model_type"] = "gemma3_text";
  json["rope_local_base_freq"] = config.rotary_base_local.value_or(config.rotary_base);
  json["final_logit_softcapping"] = gemma::softcap_json(config.final_logit_softcapping);
  json["attn_logit_softcapping"] = nullptr;
  json["use_bidirectional_attention"] = false;
  return json;
}

}  // namespace
}  // namespace gemma3

extern const ModelFamily kGemma3;
const ModelFamily kGemma3 = {.name = "gemma3",
                             .hf_model_type = "gemma3_text",
                             .hf_class = "Gemma3ForCausalLM",
                             .from_hf = gemma3::from_hf,
                             .to_hf = gemma3::to_hf,
                             .units = transformer_units,
                             .build = build_transformer};

}  // namespace megalith
