#include "models/hf_shared_rows.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"

namespace megalith {
namespace {

using Layers = std::vector<int64_t>;
constexpr const char *kWindowed = "sliding_attention", *kWhole = "full_attention";

void refuse_quantised(const Json& file, ModelConfig& /*config*/) {
  const Json* quantization = find_member(file, "quantization_config", kHfConfigFile);
  if (quantization == nullptr) return;
  const auto method = json_get_or<std::string>(*quantization, "quant_method", "an unnamed method", kHfConfigFile);
  const auto format = json_get_or<std::string>(*quantization, "fmt", "e4m3", kHfConfigFile);
  // Block-scaled FP8 is decoded on reading (checkpoint/tensor_store.h).
  if (method == "fp8" && format == "e4m3") return;
  throw UserError(fmt::format("{}: the weights are quantised ({})", kHfConfigFile,
                              method == "fp8" ? method + " " + format : method),
                  "load the unquantised model that it was made from");
}

void read_first_token(const Json& file, ModelConfig& config) {
  const Json* bos = find_member(file, "bos_token_id", kHfConfigFile);
  if (bos != nullptr && !bos->is_array()) config.bos_token_id = json_as<int64_t>(*bos, "config.json: bos_token_id");
}

void read_last_tokens(const Json& file, ModelConfig& config) {
  const Json* eos = find_member(file, "eos_token_id", kHfConfigFile);
  if (eos == nullptr) return;
  if (eos->is_array())
    config.eos_token_ids = json_as<Layers>(*eos, "config.json: eos_token_id");
  else
    config.eos_token_ids = {json_as<int64_t>(*eos, "config.json: eos_token_id")};
}

Json last_tokens(const ModelConfig& config) {
  if (config.eos_token_ids.empty()) return nullptr;
  return config.eos_token_ids.size() == 1 ? Json(config.eos_token_ids[0]) : Json(config.eos_token_ids);
}

// By layer: 1 for a window; nothing if the file does not say.
std::optional<Layers> find_windowed_layers(const Json& file, const ModelConfig& config) {
  check_hf_layer_types(file, {kWindowed});
  const Json* types = find_member(file, "layer_types", kHfConfigFile);
  if (types == nullptr) return std::nullopt;
  if (std::ssize(*types) != config.num_layers) {
    throw UserError(fmt::format("{}: layer_types has {} entries, and num_hidden_layers is {}", kHfConfigFile,
                                types->size(), config.num_layers),
                    "the file is broken: it gives one entry a layer");
  }
  Layers layers;
  for (const Json& type : *types) layers.push_back(type == kWindowed ? 1 : 0);
  return layers;
}

void read_windowed_layers(const Json& file, const Layers& layers, int64_t otherwise, ModelConfig& config) {
  if (std::ranges::find(layers, 1) == layers.end()) return;
  read_hf_window(file, otherwise, config);
  if (config.attention_window() > 0) config.window_attn_skip_freq = window_attn_skip_freq_text(layers);
}

Json layer_types(const ModelConfig& config) {
  Json types = Json::array();
  for (const int64_t has_window : config.layers_with_window()) types.push_back(has_window == 1 ? kWindowed : kWhole);
  return types;
}

struct RopeRule {
  std::string name;
  bool (*is_of)(const ModelConfig&);
  HfRows rows;
};

std::vector<RopeRule> rules_of_heads() {
  using Config = ModelConfig;
  const auto yarn_factor = [](const Json& scaling, Config& config) {
    config.rope_scaling_attention_factor = json_find<double>(scaling, "attention_factor", kHfConfigFile);
    const auto mscale = json_get_or<double>(scaling, "mscale", 0, kHfConfigFile);
    const auto mscale_all_dim = json_get_or<double>(scaling, "mscale_all_dim", 0, kHfConfigFile);
    if (config.rope_scaling_attention_factor || mscale == 0 || mscale_all_dim == 0) return;
    config.rope_scaling_attention_factor =
        yarn_mscale(config.rope_scaling_factor, mscale) / yarn_mscale(config.rope_scaling_factor, mscale_all_dim);
  };
  // If absent, classes derive it from the factor.
  const auto written_yarn_factor = [](const Config& config) {
    return config.rope_scaling_attention_factor ? Json(*config.rope_scaling_attention_factor) : hf_absent();
  };
  return {
      {"linear", [](const Config& config) { return config.rotary_seq_len_interpolation_factor != 1; },
       HfRows().required("factor", &Config::rotary_seq_len_interpolation_factor)},
      {"yarn",
       [](const Config& c) { return c.use_rope_scaling && c.rope_scaling_type == RopeScalingType::kYarn; },
       HfRows()
           .always(&Config::use_rope_scaling, true)
           .always(&Config::rope_scaling_type, RopeScalingType::kYarn)
           .required("factor", &Config::rope_scaling_factor)
           .field("original_max_position_embeddings", &Config::rope_scaling_original_max_position_embeddings,
                  &Config::max_position_embeddings)
           .field("beta_fast", &Config::rope_scaling_beta_fast, 32.0)
           .field("beta_slow", &Config::rope_scaling_beta_slow, 1.0)
           .field("truncate", &Config::rope_scaling_truncate, true)
           .custom("attention_factor", yarn_factor, written_yarn_factor)},
      {"llama3",
       [](const Config& c) { return c.use_rope_scaling && c.rope_scaling_type == RopeScalingType::kLlama3; },
       HfRows()
           .always(&Config::use_rope_scaling, true)
           .required("factor", &Config::rope_scaling_factor)
           .required("low_freq_factor", &Config::rope_scaling_low_freq_factor)
           .required("high_freq_factor", &Config::rope_scaling_high_freq_factor)
           .required("original_max_position_embeddings", &Config::rope_scaling_original_max_position_embeddings)},
  };
}

RopeRule rule_of_latent_heads() {
  using Config = ModelConfig;
  return {"yarn", [](const Config& config) { return config.has_yarn(); },
          HfRows()
              .only("attention_factor", nullptr, "the scale follows from mscale and mscale_all_dim here")
              .only("truncate", true, "the bounds of the blend are whole numbers here")
              .always(&Config::rope_type, RopeType::kYarn)
              .required("factor", &Config::rotary_scaling_factor)
              .field("beta_fast", &Config::beta_fast, 32.0)
              .field("beta_slow", &Config::beta_slow, 1.0)
              .field("mscale", &Config::mscale, 0.0)
              .field("mscale_all_dim", &Config::mscale_all_dim, 0.0)
              .field("original_max_position_embeddings", &Config::original_max_position_embeddings,
                     &Config::max_position_embeddings)
              .written("type", "yarn")};
}

// Writes all rules; reads the named ones.
HfRows rope_rows(const std::vector<RopeRule>& rules, const std::vector<std::string>& names, const Json& otherwise) {
  const auto read = [=](const Json& file, ModelConfig& config) {
    const bool is_five = find_member(file, "rope_parameters", kHfConfigFile) != nullptr;
    const Json& scaling = file.contains("rope_scaling") ? file["rope_scaling"] : otherwise;
    if (scaling.is_null()) return;
    const std::string where = fmt::format("{}: {}", kHfConfigFile, is_five ? "rope_parameters" : "rope_scaling");
    const std::string name = json_find<std::string>(scaling, "rope_type", where)
                                 .value_or(json_get_or<std::string>(scaling, "type", "default", where));
    if (name == "default") return;
    const auto rule = std::ranges::find(rules, name, &RopeRule::name);
    if (rule != rules.end() && std::ranges::find(names, name) != names.end()) {
      return rule->rows.read(scaling, where, config);
    }
    std::string expected = "'default'";
    for (const std::string& other : names) expected += fmt::format(" or '{}'", other);
    throw UserError(fmt::format("{}: rotary scaling of type '{}', expected {}", where, name, expected),
                    "this model cannot be loaded: its positions would be rotated wrongly");
  };
  const auto written = [=](const ModelConfig& config) {
    Json scaling;
    for (const RopeRule& rule : rules) {
      if (!rule.is_of(config)) continue;
      scaling = {{"rope_type", rule.name}};
      rule.rows.write(config, scaling);
    }
    return scaling;
  };
  return HfRows().custom("rope_scaling", read, written);
}

// Only classes that say so rotate adjacent pairs.
Json refuse_other_rotation(const ModelConfig& config) {
  if (!config.rotary_interleaved && config.rotary_percent == 1) return hf_absent();
  throw UserError(fmt::format("rotary_interleaved {} and rotary_percent {} have no form in {}",
                              config.rotary_interleaved, config.rotary_percent, kHfConfigFile),
                  "only models with rotary_interleaved false and rotary_percent 1 can be exported");
}

}  // namespace

HfRows hf_common_rows() {
  const auto vocabulary = [](const ModelConfig& config) {
    MEGALITH_CHECK(config.vocab_size.has_value(), "export without a vocabulary");
    return *config.vocab_size;
  };
  return HfRows()
      .required("vocab_size", &ModelConfig::vocab_size, vocabulary)
      .opposite("tie_word_embeddings", &ModelConfig::untie_embeddings_and_output_weights, true)
      .field("initializer_range", &ModelConfig::init_method_std, 0.02)
      .custom("bos_token_id", read_first_token, &ModelConfig::bos_token_id)
      .custom("eos_token_id", read_last_tokens, last_tokens)
      .custom("quantization_config", refuse_quantised);
}

HfRows hf_decoder_rows() {
  using Config = ModelConfig;
  return HfRows()
      .prepare(hf_in_version_4)
      .required("num_hidden_layers", &Config::num_layers)
      .required("hidden_size", &Config::hidden_size)
      .required("intermediate_size", &Config::ffn_hidden_size, &Config::ffn_size)
      .required("num_attention_heads", &Config::num_attention_heads)
      .join(hf_common_rows())
      .opposite("tie_word_embeddings", &Config::untie_embeddings_and_output_weights, false)
      .field("max_position_embeddings", &Config::max_position_embeddings, 2048)
      .field("num_key_value_heads", &Config::num_query_groups, &Config::num_attention_heads, &Config::num_kv_heads)
      .field("head_dim", &Config::kv_channels, nullptr, &Config::query_head_dim)
      .then([](Config& config) {
        config.group_query_attention = config.num_query_groups != config.num_attention_heads;
        if (!config.group_query_attention) config.num_query_groups = Config().num_query_groups;
        if (config.kv_channels.value_or(0) * config.num_attention_heads == config.hidden_size) {
          config.kv_channels.reset();
        }
      })
      .field("rms_norm_eps", &Config::norm_epsilon, 1e-6)
      .field("attention_dropout", &Config::attention_dropout, 0.0)
      .always(&Config::hidden_dropout, 0)
      .always(&Config::position_embedding_type, PositionEmbedding::kRope)
      .always(&Config::normalization, Normalization::kRmsNorm)
      .always(&Config::swiglu, true)
      .always(&Config::add_bias_linear, false)
      .always(&Config::rope_type, RopeType::kRope)
      .field("rope_theta", &Config::rotary_base, 10000.0)
      .fixed("partial_rotary_factor", 1.0, "all channels of a head are rotated in this family", refuse_other_rotation)
      .join(hf_rope_rows({"llama3"}))
      .fixed("hidden_act", "silu", "this family's MLP has SiLU gates",
             [](const Config& config) { return config.geglu ? "gelu_pytorch_tanh" : "silu"; })
      .custom("layer_types", [](const Json& file, Config&) { check_hf_layer_types(file, {}); });
}

HfRows hf_rope_rows(std::vector<std::string> rules, const Json& otherwise) {
  return rope_rows(rules_of_heads(), rules, otherwise);
}

HfRows hf_latent_rope_rows() { return rope_rows({rule_of_latent_heads()}, {"yarn"}, nullptr); }

Json hf_in_version_4(const Json& file) {
  const Json* parameters = find_member(file, "rope_parameters", kHfConfigFile);
  const Json* rope = parameters != nullptr ? parameters : find_member(file, "rope_scaling", kHfConfigFile);
  if (rope == nullptr) return file;
  Json json = file;
  json["rope_scaling"] = *rope;
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    const Json* value = find_member(*rope, key, "config.json: rope_scaling or rope_parameters");
    if (value != nullptr) json[key] = *value;
  }
  return json;
}

void read_hf_window(const Json& file, std::optional<int64_t> otherwise, ModelConfig& config) {
  const bool is_null = file.contains("sliding_window") && file["sliding_window"].is_null();
  if (is_null || (!otherwise && !file.contains("sliding_window"))) return;
  config.window_size = {hf_integer(file, "sliding_window", otherwise.value_or(0), kMostPositions) - 1, 0};
}

Json written_hf_window(const ModelConfig& config) {
  return config.has_windows() ? Json(config.attention_window()) : Json(nullptr);
}

HfRows hf_window_rows(std::optional<int64_t> otherwise) {
  const auto read = [=](const Json& file, ModelConfig& config) { read_hf_window(file, otherwise, config); };
  return HfRows().custom("sliding_window", read, written_hf_window);
}

HfRows hf_windowed_layers_rows(int64_t window, int64_t every, const std::string& key) {
  const auto read = [=](const Json& file, ModelConfig& config) {
    const std::optional<Layers> layers = find_windowed_layers(file, config);
    const std::string skip_freq = std::to_string(key.empty() ? every : hf_integer(file, key, every, kMostLayers));
    read_windowed_layers(file, layers.value_or(parse_window_attn_skip_freq(skip_freq, config.num_layers)), window,
                         config);
  };
  // The classes make a window mask even where no layer has a window.
  const auto written_window = [](const ModelConfig& config) {
    return std::max<int64_t>(config.attention_window() > 0 ? config.attention_window() : config.max_position_embeddings,
                             1);
  };
  return HfRows().custom("layer_types", read, layer_types).written("sliding_window", written_window);
}

HfRows hf_upper_window_rows() {
  const auto read = [](const Json& file, ModelConfig& config) {
    std::optional<Layers> layers = find_windowed_layers(file, config);
    if (!json_get_or<bool>(file, "use_sliding_window", false, kHfConfigFile)) {
      if (!layers || std::ranges::find(*layers, 1) == layers->end()) return;
      throw UserError(
          fmt::format("{}: layer_types has \"sliding_attention\", and use_sliding_window is false", kHfConfigFile),
          "the file contradicts itself: set use_sliding_window to true, or all layer_types to full_attention");
    }
    if (!layers) {
      const int64_t first = hf_integer(file, "max_window_layers", 28, kMostLayers, 0);
      layers.emplace();
      for (int64_t layer = 0; layer < config.num_layers; ++layer) layers->push_back(layer >= first ? 1 : 0);
    }
    read_windowed_layers(file, *layers, 4096, config);
  };
  // Only for mixed layers.
  const auto types = [](const ModelConfig& config) {
    return window_attn_skip_freq_text(config.layers_with_window()).empty() || config.attention_window() == 0
               ? hf_absent()
               : layer_types(config);
  };
  // Older versions know only the first layer with a window.
  const auto first = [](const ModelConfig& config) -> int64_t {
    if (config.attention_window() == 0) return config.num_layers;
    const Layers layers = config.layers_with_window();
    return std::ranges::find(layers, 1) - layers.begin();
  };
  const auto window = [](const ModelConfig& config) {
    return config.attention_window() > 0 ? Json(config.attention_window()) : Json(nullptr);
  };
  return HfRows()
      .custom("layer_types", read, types)
      .written("use_sliding_window", [](const ModelConfig& config) { return config.attention_window() > 0; })
      .written("sliding_window", window)
      .written("max_window_layers", first);
}

void check_hf_layer_types(const Json& file, const std::vector<std::string>& others) {
  const Json* types = find_member(file, "layer_types", kHfConfigFile);
  if (types == nullptr) return;
  for (const Json& type : *types) {
    const auto is_other = [&](const std::string& other) { return type == other; };
    if (type == kWhole || std::ranges::any_of(others, is_other)) continue;
    throw UserError(fmt::format("{}: layer_types has {}, and only \"full_attention\" can be honoured", kHfConfigFile,
                                dump_json(type)),
                    "this model has a kind of attention that its family does not have here");
  }
}

HfRows hf_unrotated_layers_rows() {
  const auto read = [](const Json& file, ModelConfig& config) {
    auto layers = json_get_or<Layers>(file, "no_rope_layers", {}, kHfConfigFile);
    for (int64_t& layer : layers) layer = layer == 0 ? 1 : 0;
    const std::string text = layers.empty()
                                 ? std::to_string(hf_integer(file, "no_rope_layer_interval", 4, kMostLayers))
                                 : fmt::format("[{}]", fmt::join(layers, ","));
    config.no_rope_freq = no_rope_freq_text(parse_no_rope_freq(text, config.num_layers));
  };
  return HfRows().custom("no_rope_layers", read, [](const ModelConfig& config) {
    Layers layers = config.layers_without_rotation();
    for (int64_t& layer : layers) layer = 1 - layer;
    return layers;
  });
}

HfRows hf_balance_rows(double otherwise) {
  const auto read = [=](const Json& file, ModelConfig& config) {
    if (!json_get_or<bool>(file, "output_router_logits", false, kHfConfigFile)) return;
    config.moe_aux_loss_coeff = json_get_or<double>(file, "router_aux_loss_coef", otherwise, kHfConfigFile);
  };
  return HfRows()
      .custom("router_aux_loss_coef", read, &ModelConfig::moe_aux_loss_coeff)
      .written("output_router_logits", false);
}

HfRows hf_experts_after_dense_rows(const HfExpertDefaults& otherwise) {
  const auto read_shared = [=](const Json& file, ModelConfig& config) {
    const int64_t count = hf_integer(file, "n_shared_experts", otherwise.num_shared, kMostExperts, 0);
    if (count > 0) config.moe_shared_expert_intermediate_size = count * config.expert_ffn_size();
  };
  const auto shared = [](const ModelConfig& config) { return config.shared_expert_size() / config.expert_ffn_size(); };
  const auto read_dense = [=](const Json& file, ModelConfig& config) {
    const int64_t dense = hf_integer(file, "first_k_dense_replace", otherwise.num_dense, kMostLayers, 0);
    config.moe_layer_freq = moe_layer_freq_text(std::min(dense, config.num_layers), config.num_layers);
  };
  const auto scaling = [](const ModelConfig& config) { return config.moe_router_topk_scaling_factor.value_or(1); };
  return HfRows()
      .field("n_routed_experts", &ModelConfig::num_experts, otherwise.num_experts, &ModelConfig::expert_count)
      .field("moe_intermediate_size", &ModelConfig::moe_ffn_hidden_size, otherwise.width, &ModelConfig::expert_ffn_size)
      .required("num_experts_per_tok", &ModelConfig::moe_router_topk)
      .custom("n_shared_experts", read_shared, shared)
      .custom("first_k_dense_replace", read_dense, hf_dense_layers)
      .field("routed_scaling_factor", &ModelConfig::moe_router_topk_scaling_factor, otherwise.scaling, scaling)
      .always(&ModelConfig::moe_router_dtype, RouterPrecision::kFp32);
}

int64_t hf_dense_layers(const ModelConfig& config) {
  int64_t dense = 0;
  while (dense < config.num_layers && !config.has_experts_at(dense)) ++dense;
  for (int64_t layer = dense; layer < config.num_layers; ++layer) {
    if (config.has_experts_at(layer)) continue;
    throw UserError(fmt::format("moe_layer_freq '{}' has no form in {}: layer {} has experts and layer {} none",
                                config.moe_layer_freq, kHfConfigFile, dense, layer),
                    "let all layers behind the first with experts have them");
  }
  return dense;
}

void refuse_single_expert(ModelConfig& config) {
  if (config.moe_router_topk != 1) return;
  throw UserError(fmt::format("{}: num_experts_per_tok is 1", kHfConfigFile),
                  "the weight of a single expert is its score here, and 1 in Hugging Face's class");
}

}  // namespace megalith
