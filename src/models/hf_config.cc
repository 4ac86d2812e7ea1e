#include "models/hf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "models/layer_pattern.h"
#include "models/model_bounds.h"

namespace megalith {

namespace {

// The rotary keys live in rope_parameters (version 5), or beside the others and in rope_scaling (version 4).
void read_yarn(const Json& scaling, const std::string& where, ModelConfig& config) {
  refuse_unless(scaling, "attention_factor", nullptr, "the scale follows from mscale and mscale_all_dim here");
  refuse_unless(scaling, "truncate", true, "the bounds of the blend are whole numbers here");
  config.rope_type = RopeType::kYarn;
  config.rotary_scaling_factor = json_get<double>(scaling, "factor", where);
  config.beta_fast = json_get_or<double>(scaling, "beta_fast", 32, where);
  config.beta_slow = json_get_or<double>(scaling, "beta_slow", 1, where);
  config.mscale = json_get_or<double>(scaling, "mscale", 0, where);
  config.mscale_all_dim = json_get_or<double>(scaling, "mscale_all_dim", 0, where);
  config.original_max_position_embeddings =
      json_get_or<int64_t>(scaling, "original_max_position_embeddings", config.max_position_embeddings, where);
}

// YaRN for ordinary heads.
void read_heads_yarn(const Json& scaling, const std::string& where, ModelConfig& config) {
  config.use_rope_scaling = true;
  config.rope_scaling_type = RopeScalingType::kYarn;
  config.rope_scaling_factor = json_get<double>(scaling, "factor", where);
  config.rope_scaling_original_max_position_embeddings =
      json_get_or<int64_t>(scaling, "original_max_position_embeddings", config.max_position_embeddings, where);
  config.rope_scaling_beta_fast = json_get_or<double>(scaling, "beta_fast", 32, where);
  config.rope_scaling_beta_slow = json_get_or<double>(scaling, "beta_slow", 1, where);
  config.rope_scaling_truncate = json_get_or<bool>(scaling, "truncate", true, where);
  config.rope_scaling_attention_factor = json_find<double>(scaling, "attention_factor", where);
  const auto mscale = json_get_or<double>(scaling, "mscale", 0, where);
  const auto mscale_all_dim = json_get_or<double>(scaling, "mscale_all_dim", 0, where);
  if (config.rope_scaling_attention_factor || mscale == 0 || mscale_all_dim == 0) return;
  config.rope_scaling_attention_factor =
      yarn_mscale(config.rope_scaling_factor, mscale) / yarn_mscale(config.rope_scaling_factor, mscale_all_dim);
}

// Its key is another one's neighbour in version 4, and in rope_parameters in version 5.
void read_partial_rotary(const Json& json, const Json* parameters, const std::string& where, double otherwise,
                         ModelConfig& config) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  config.rotary_percent = json_get_or<double>(json, kKey, otherwise, kHfConfigFile);
  if (parameters != nullptr) {
    config.rotary_percent = json_get_or<double>(*parameters, kKey, config.rotary_percent, where);
  }
  if (config.rotary_percent > 0 && config.rotary_percent <= 1) return;
  throw UserError(
      fmt::format("{}: {} is {}, expected above 0 and at most 1", kHfConfigFile, kKey, config.rotary_percent),
      "the file is broken");
}

void read_rope(const Json& json, const HfDefaults& defaults, ModelConfig& config) {
  const Json* parameters = find_member(json, "rope_parameters", kHfConfigFile);
  const Json* scaling = parameters != nullptr ? parameters : find_member(json, "rope_scaling", kHfConfigFile);
  const std::string where =
      fmt::format("{}: {}", kHfConfigFile, parameters != nullptr ? "rope_parameters" : "rope_scaling");

  config.rope_type = RopeType::kRope;
  config.rotary_base = json_get_or<double>(json, "rope_theta", 10000, kHfConfigFile);
  if (parameters != nullptr)
    config.rotary_base = json_get_or<double>(*parameters, "rope_theta", config.rotary_base, where);
  if (defaults.partial_rotary_factor) {
    read_partial_rotary(json, parameters, where, *defaults.partial_rotary_factor, config);
  } else {
    constexpr const char* kWhy = "all channels of a head are rotated in this family";
    refuse_unless(json, "partial_rotary_factor", 1.0, kWhy);
    if (scaling != nullptr) refuse_unless(*scaling, "partial_rotary_factor", 1.0, kWhy);
  }
  if (scaling == nullptr) return;

  const std::string type = json_find<std::string>(*scaling, "rope_type", where)
                               .value_or(json_get_or<std::string>(*scaling, "type", "default", where));
  if (type == "default") return;
  if (type == "yarn" && defaults.allows_heads_yarn) return read_heads_yarn(*scaling, where, config);
  if (type == "yarn" && defaults.allows_yarn) return read_yarn(*scaling, where, config);
  if (type == "linear" && defaults.allows_linear) {
    config.rotary_seq_len_interpolation_factor = json_get<double>(*scaling, "factor", where);
    return;
  }
  if (type != "llama3") {
    throw UserError(fmt::format("{}: rotary scaling of type '{}', expected 'default' or 'llama3'", where, type),
                    "this model cannot be loaded: its positions would be rotated wrongly");
  }
  config.use_rope_scaling = true;
  config.rope_scaling_factor = json_get<double>(*scaling, "factor", where);
  config.rope_scaling_low_freq_factor = json_get<double>(*scaling, "low_freq_factor", where);
  config.rope_scaling_high_freq_factor = json_get<double>(*scaling, "high_freq_factor", where);
  config.rope_scaling_original_max_position_embeddings =
      json_get<int64_t>(*scaling, "original_max_position_embeddings", where);
}

void read_special_tokens(const Json& json, ModelConfig& config) {
  const Json* bos = find_member(json, "bos_token_id", kHfConfigFile);
  if (bos != nullptr && !bos->is_array()) config.bos_token_id = json_as<int64_t>(*bos, "config.json: bos_token_id");
  const Json* eos = find_member(json, "eos_token_id", kHfConfigFile);
  if (eos == nullptr) return;
  if (eos->is_array())
    config.eos_token_ids = json_as<std::vector<int64_t>>(*eos, "config.json: eos_token_id");
  else
    config.eos_token_ids = {json_as<int64_t>(*eos, "config.json: eos_token_id")};
}

constexpr const char* kGeluTanh = "gelu_pytorch_tanh";

std::string_view hf_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace

void refuse_unless(const Json& json, std::string_view key, const Json& honoured, std::string_view why) {
  const Json* value = find_member(json, key, kHfConfigFile);
  if (value == nullptr || *value == honoured) return;
  throw UserError(fmt::format("{}: {} is {}, and only {} can be honoured", kHfConfigFile, key, dump_json(*value),
                              dump_json(honoured)),
                  std::string(why));
}

void read_hf_common(const Json& json, const HfCommonDefaults& defaults, ModelConfig& config) {
  config.vocab_size = json_get<int64_t>(json, "vocab_size", kHfConfigFile);
  config.untie_embeddings_and_output_weights =
      !json_get_or<bool>(json, "tie_word_embeddings", defaults.is_tied, kHfConfigFile);
  config.init_method_std = json_get_or<double>(json, "initializer_range", 0.02, kHfConfigFile);
  read_special_tokens(json, config);
  if (const Json* quantization = find_member(json, "quantization_config", kHfConfigFile)) {
    const auto method = json_get_or<std::string>(*quantization, "quant_method", "an unnamed method", kHfConfigFile);
    const auto format = json_get_or<std::string>(*quantization, "fmt", "e4m3", kHfConfigFile);
    // FP8 with block scales is decoded as it is read (checkpoint/tensor_store.h).
    if (method != "fp8" || format != "e4m3") {
      throw UserError(fmt::format("{}: the weights are quantised ({})", kHfConfigFile,
                                  method == "fp8" ? method + " " + format : method),
                      "load the unquantised model that it was made from");
    }
  }
}

Json write_hf_common(const ModelConfig& config, at::ScalarType dtype) {
  MEGALITH_CHECK(config.vocab_size.has_value(), "export without a vocabulary");
  Json json = {
      {"vocab_size", *config.vocab_size},
      {"initializer_range", config.init_method_std},
      {"use_cache", true},
      {"tie_word_embeddings", !config.untie_embeddings_and_output_weights},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"torch_dtype", hf_dtype(dtype)},
      {"transformers_version", "4.57.1"},
  };
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1)
    json["eos_token_id"] = config.eos_token_ids[0];
  else if (!config.eos_token_ids.empty())
    json["eos_token_id"] = config.eos_token_ids;
  return json;
}

void check_hf_bounds(const Json& json, std::string_view where) {
  constexpr std::pair<std::string_view, int64_t> kMost[] = {
      {"num_hidden_layers", kMostLayers},
      {"n_layer", kMostLayers},
      {"num_layers", kMostLayers},
      {"num_single_layers", kMostLayers},
      {"first_k_dense_replace", kMostLayers},
      {"num_nextn_predict_layers", kMostPredictionModules},
      {"hidden_size", kMostWidth},
      {"n_embd", kMostWidth},
      {"in_channels", kMostWidth},
      {"attention_head_dim", kMostWidth},
      {"joint_attention_dim", kMostWidth},
      {"pooled_projection_dim", kMostWidth},
      {"head_dim", kMostWidth},
      {"q_lora_rank", kMostWidth},
      {"kv_lora_rank", kMostWidth},
      {"qk_nope_head_dim", kMostWidth},
      {"qk_rope_head_dim", kMostWidth},
      {"v_head_dim", kMostWidth},
      {"intermediate_size", kMostFfnWidth},
      {"n_inner", kMostFfnWidth},
      {"moe_intermediate_size", kMostFfnWidth},
      {"num_attention_heads", kMostHeads},
      {"num_key_value_heads", kMostHeads},
      {"n_head", kMostHeads},
      {"vocab_size", kMostVocabulary},
      {"bos_token_id", kMostVocabulary},
      {"eos_token_id", kMostVocabulary},
      {"max_position_embeddings", kMostPositions},
      {"original_max_position_embeddings", kMostPositions},
      {"n_positions", kMostPositions},
      {"sliding_window", kMostPositions},
      {"max_window_layers", kMostLayers},
      {"num_experts", kMostExperts},
      {"num_local_experts", kMostExperts},
      {"decoder_sparse_step", kMostLayers},
      {"mlp_only_layers", kMostLayers},
      {"n_routed_experts", kMostExperts},
      {"n_shared_experts", kMostExperts},
      {"num_experts_per_tok", kMostExperts},
      {"experts_per_token", kMostExperts},
      {"n_group", kMostExperts},
      {"topk_group", kMostExperts},
      {"weight_block_size", kMostFfnWidth},
      {"intermediate_size_mlp", kMostFfnWidth},
      {"interleave_moe_layer_step", kMostLayers},
      {"moe_layers", kMostLayers},
      {"no_rope_layer_interval", kMostLayers},
      {"attention_chunk_size", kMostPositions},
      {"floor_scale", kMostPositions},
      {"type_vocab_size", kMostWidth},
  };
  if (!json.is_object()) return;
  for (const auto& [key, most] : kMost) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    const auto check = [&, &key = key, &most = most](const Json& value) {
      if (!value.is_number()) return;
      const auto size = json_as<double>(value, key);
      if (std::abs(size) <= static_cast<double>(most)) return;
      throw UserError(fmt::format("{}: {} is {}, expected at most {}", where, key, dump_json(value), most),
                      "no published model comes near this bound: the file is broken");
    };
    check(*found);
    if (!found->is_array()) continue;
    for (const Json& value : *found) check(value);
  }
  for (const char* part : {"rope_scaling", "rope_parameters", "quantization_config"}) {
    const auto found = json.find(part);
    if (found != json.end()) check_hf_bounds(*found, fmt::format("{}: {}", where, part));
  }
}

void check_hf_sizes(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) {
    if (size < 1)
      throw UserError(fmt::format("{}: a size is {}, expected at least 1", kHfConfigFile, size), "the file is broken");
  }
}

ModelConfig read_hf_decoder(const Json& json, const HfDefaults& defaults) {
  ModelConfig config;
  const auto integer = [&](std::string_view key) { return json_get<int64_t>(json, key, kHfConfigFile); };
  config.num_layers = integer("num_hidden_layers");
  config.hidden_size = integer("hidden_size");
  config.ffn_hidden_size = integer("intermediate_size");
  config.num_attention_heads = integer("num_attention_heads");
  read_hf_common(json, {.is_tied = defaults.is_tied}, config);
  config.max_position_embeddings =
      json_get_or<int64_t>(json, "max_position_embeddings", defaults.max_position_embeddings, kHfConfigFile);
  const int64_t kv_heads = json_get_or<int64_t>(json, "num_key_value_heads", config.num_attention_heads, kHfConfigFile);
  config.group_query_attention = kv_heads != config.num_attention_heads;
  if (config.group_query_attention) config.num_query_groups = kv_heads;
  check_hf_sizes({config.num_layers, config.hidden_size, *config.ffn_hidden_size, config.num_attention_heads,
                  *config.vocab_size, config.max_position_embeddings, kv_heads});
  const auto head_dim = json_find<int64_t>(json, "head_dim", kHfConfigFile);
  if (head_dim && *head_dim * config.num_attention_heads != config.hidden_size) config.kv_channels = head_dim;

  config.norm_epsilon = json_get_or<double>(json, "rms_norm_eps", defaults.norm_epsilon, kHfConfigFile);
  config.attention_dropout = json_get_or<double>(json, "attention_dropout", 0, kHfConfigFile);
  config.hidden_dropout = 0;
  config.position_embedding_type = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  (defaults.has_gelu_gates ? config.geglu : config.swiglu) = true;
  config.add_bias_linear = false;
  read_rope(json, defaults, config);

  if (defaults.has_gelu_gates)
    refuse_unless(json, "hidden_activation", kGeluTanh, "this family's MLP has gates of GELU by a tanh");
  else
    refuse_unless(json, "hidden_act", "silu", "this family's MLP has SiLU gates");
  if (const Json* types = find_member(json, "layer_types", kHfConfigFile)) {
    for (const Json& type : *types) {
      if (type == "full_attention" || (defaults.allows_window && type == "sliding_attention") ||
          (defaults.allows_chunks && type == "chunked_attention")) {
        continue;
      }
      throw UserError(fmt::format("{}: layer_types has {}, and only \"full_attention\" can be honoured", kHfConfigFile,
                                  dump_json(type)),
                      "this model has a kind of attention that its family does not have here");
    }
  }
  return config;
}

int64_t hf_dense_layers_in_front(const ModelConfig& config) {
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

void read_hf_window(const Json& json, std::optional<int64_t> otherwise, ModelConfig& config) {
  const std::optional<int64_t> window =
      json.contains("sliding_window") ? json_find<int64_t>(json, "sliding_window", kHfConfigFile) : otherwise;
  if (!window) return;
  check_hf_sizes({*window});
  config.window_size = {*window - 1, 0};
}

namespace {

constexpr const char *kWindowed = "sliding_attention", *kWhole = "full_attention";

// One entry a layer, 1 for a window; nothing where the file does not say.
std::optional<std::vector<int64_t>> find_layer_types(const Json& json, const ModelConfig& config) {
  const Json* types = find_member(json, "layer_types", kHfConfigFile);
  if (types == nullptr) return std::nullopt;
  if (std::ssize(*types) != config.num_layers) {
    throw UserError(fmt::format("{}: layer_types has {} entries, and num_hidden_layers is {}", kHfConfigFile,
                                types->size(), config.num_layers),
                    "the file is broken: it gives one entry a layer");
  }
  std::vector<int64_t> layers;
  for (const Json& type : *types) layers.push_back(type == kWindowed ? 1 : 0);
  return layers;
}

bool has_windows(const std::vector<int64_t>& layers) {
  return std::find(layers.begin(), layers.end(), 1) != layers.end();
}

Json layer_types_of(const std::vector<int64_t>& layers) {
  Json types = Json::array();
  for (const int64_t has_window : layers) types.push_back(has_window == 1 ? kWindowed : kWhole);
  return types;
}

}  // namespace

void read_hf_windowed_layers(const Json& json, const HfWindowDefaults& otherwise, ModelConfig& config) {
  const std::vector<int64_t> layers =
      find_layer_types(json, config)
          .value_or(parse_window_attn_skip_freq(std::string(otherwise.skip_freq), config.num_layers));
  if (!has_windows(layers)) return;
  read_hf_window(json, otherwise.window, config);
  if (config.attention_window() > 0) config.window_attn_skip_freq = window_attn_skip_freq_text(layers);
}

void write_hf_windowed_layers(const ModelConfig& config, Json& json) {
  // The classes make a mask for windows even where no layer has one.
  const int64_t window = config.attention_window();
  json["sliding_window"] = window > 0 ? window : std::max<int64_t>(config.max_position_embeddings, 1);
  json["layer_types"] = layer_types_of(config.layers_with_window());
}

void read_hf_upper_window(const Json& json, ModelConfig& config) {
  std::optional<std::vector<int64_t>> layers = find_layer_types(json, config);
  if (!json_get_or<bool>(json, "use_sliding_window", false, kHfConfigFile)) {
    if (!layers || !has_windows(*layers)) return;
    throw UserError(
        fmt::format("{}: layer_types has \"sliding_attention\", and use_sliding_window is false", kHfConfigFile),
        "the file contradicts itself: set use_sliding_window to true, or all layer_types to full_attention");
  }
  if (!layers) {
    const auto first = json_get_or<int64_t>(json, "max_window_layers", 28, kHfConfigFile);
    layers.emplace();
    for (int64_t layer = 0; layer < config.num_layers; ++layer) layers->push_back(layer >= first ? 1 : 0);
  }
  if (!has_windows(*layers)) return;
  read_hf_window(json, 4096, config);
  if (config.attention_window() > 0) config.window_attn_skip_freq = window_attn_skip_freq_text(*layers);
}

void write_hf_upper_window(const ModelConfig& config, Json& json) {
  const int64_t window = config.attention_window();
  json["use_sliding_window"] = window > 0;
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  json["max_window_layers"] = window > 0 ? 0 : config.num_layers;
  const std::vector<int64_t> layers = config.layers_with_window();
  if (window == 0 || window_attn_skip_freq_text(layers).empty()) return;
  json["layer_types"] = layer_types_of(layers);
  // Older versions know only the first layer with a window.
  json["max_window_layers"] = std::find(layers.begin(), layers.end(), 1) - layers.begin();
}

Json write_hf_decoder(const ModelConfig& config, at::ScalarType dtype) {
  if (config.rotary_interleaved || config.rotary_percent != 1) {
    throw UserError(fmt::format("rotary_interleaved {} and rotary_percent {} have no form in {}",
                                config.rotary_interleaved, config.rotary_percent, kHfConfigFile),
                    "only models with rotary_interleaved false and rotary_percent 1 can be exported");
  }
  Json json = write_hf_common(config, dtype);
  json.update({
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.ffn_size()},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_kv_heads()},
      {"head_dim", config.query_head_dim()},
      {"hidden_act", config.geglu ? kGeluTanh : "silu"},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.norm_epsilon},
      {"rope_theta", config.rotary_base},
      {"rope_scaling", nullptr},
      {"attention_dropout", config.attention_dropout},
  });
  if (config.rotary_seq_len_interpolation_factor != 1) {
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", config.rotary_seq_len_interpolation_factor}};
  }
  if (config.use_rope_scaling && config.rope_scaling_type == RopeScalingType::kYarn) {
    json["rope_scaling"] = {
        {"rope_type", "yarn"},
        {"factor", config.rope_scaling_factor},
        {"original_max_position_embeddings", config.rope_scaling_original_max_position_embeddings},
        {"beta_fast", config.rope_scaling_beta_fast},
        {"beta_slow", config.rope_scaling_beta_slow},
        {"truncate", config.rope_scaling_truncate},
    };
    // Without it the classes take what follows from the factor.
    if (config.rope_scaling_attention_factor)
      json["rope_scaling"]["attention_factor"] = *config.rope_scaling_attention_factor;
  } else if (config.use_rope_scaling) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", config.rope_scaling_factor},
        {"low_freq_factor", config.rope_scaling_low_freq_factor},
        {"high_freq_factor", config.rope_scaling_high_freq_factor},
        {"original_max_position_embeddings", config.rope_scaling_original_max_position_embeddings},
    };
  }
  return json;
}

}  // namespace megalith
