// The configuration in a checkpoint; see configuration.h.
#include "checkpoint/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"

namespace megalith {
namespace {

// Options of a model that its weights do not depend on. (Learned positions are a table of max_position_embeddings
// rows.)
constexpr const char* kNotOfWeights[] = {
    "max_position_embeddings", "make_vocab_size_divisible_by", "attention_dropout", "hidden_dropout", "init_method_std",
    "embedding_init_method_std", "bos_token_id", "eos_token_ids",
    // How experts are balanced, limited and reached.
    "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_input_jitter_eps",
    "moe_router_bias_update_rate", "moe_router_force_load_balancing", "moe_token_dispatcher_type",
    "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "moe_token_drop_policy",
    "moe_shared_expert_overlap", "mtp_loss_scaling_factor"};

template <typename Part>
void reset(ModelConfig& config) {
  static_cast<Part&>(config) = Part();
}

}  // namespace

Configuration configuration_of(const OptionSet& options) {
  Configuration configuration;
  for (const auto& option : options.options()) configuration.emplace_back(option->name(), option->text());
  return configuration;
}

std::string plain_text(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return std::string(value);
  std::string text;
  const std::string_view inside = value.substr(1, value.size() - 2);
  for (size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] != '\\' || i + 1 == inside.size()) {
      text += inside[i];
    } else if (inside[++i] == 'x' && i + 2 < inside.size()) {
      unsigned code = 0;
      std::from_chars(inside.data() + i + 1, inside.data() + i + 3, code, 16);
      text += static_cast<char>(code);
      i += 2;
    } else {
      text += inside[i];
    }
  }
  return text;
}

Configuration architecture_of(const ModelConfig& config) {
  ModelConfig resolved = config;
  resolved.ffn_hidden_size = config.ffn_size();
  if (!config.multi_latent_attention) resolved.kv_channels = config.head_dim();
  resolved.num_query_groups = config.num_kv_heads();
  resolved.group_query_attention = config.num_kv_heads() != config.num_attention_heads;
  ModelConfig defaults;
  resolved.use_rotary_position_embeddings = defaults.use_rotary_position_embeddings;
  resolved.disable_bias_linear = defaults.disable_bias_linear;
  resolved.position_embedding_type = config.position_embedding();
  resolved.add_bias_linear = config.has_linear_bias();
  // Weights do not depend on the numbers of a feature that is off.
  if (!config.multi_latent_attention) reset<LatentOptions>(resolved);
  if (config.has_experts()) {
    resolved.moe_ffn_hidden_size = config.expert_ffn_size();
    resolved.moe_shared_expert_intermediate_size = config.shared_expert_size();
    resolved.num_shared_experts.reset();
    resolved.moe_layer_freq = normalised_moe_layer_freq(config.moe_layer_freq, config.num_layers);
  } else {
    reset<ExpertOptions>(resolved);
  }
  resolved.mtp_num_layers = config.num_prediction_modules();
  if (resolved.position_embedding_type != PositionEmbedding::kRope) {
    resolved.rotary_base = defaults.rotary_base;
    resolved.rotary_percent = defaults.rotary_percent;
    resolved.rotary_interleaved = defaults.rotary_interleaved;
  }
  if (!config.use_rope_scaling) {
    resolved.rope_scaling_factor = defaults.rope_scaling_factor;
    resolved.rope_scaling_low_freq_factor = defaults.rope_scaling_low_freq_factor;
    resolved.rope_scaling_high_freq_factor = defaults.rope_scaling_high_freq_factor;
    resolved.rope_scaling_original_max_position_embeddings = defaults.rope_scaling_original_max_position_embeddings;
  }
  const OptionSet options(resolved), default_options(defaults);
  for (const char* name : kNotOfWeights) {
    const bool is_table = std::string_view(name) == "max_position_embeddings" &&
                          resolved.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
    if (Option* option = options.find(name); option != nullptr && !is_table)
      option->set(default_options.find(name)->text(), {});
  }
  return configuration_of(options);
}

ModelConfig model_config_of(const Configuration& architecture, const Configuration& configuration) {
  ModelConfig config;
  const OptionSet options(config);
  const auto apply = [&](const Configuration& values, auto is_taken) {
    for (const auto& [name, value] : values) {
      Option* option = options.find(name);
      if (option != nullptr && is_taken(name)) {
        option->set(plain_text(value), {OptionLayer::kModel, "checkpoint"});
      }
    }
  };
  const auto is_not_of_weights = [](const std::string& name) {
    return std::find(std::begin(kNotOfWeights), std::end(kNotOfWeights), name) != std::end(kNotOfWeights);
  };
  apply(architecture, [](const std::string&) { return true; });
  apply(configuration, is_not_of_weights);
  return config;
}

std::vector<ConfigurationDifference> compare_configuration(const Configuration& stored, const Configuration& present) {
  const std::map<std::string, std::string> old_values(stored.begin(), stored.end());
  const std::map<std::string, std::string> new_values(present.begin(), present.end());
  std::vector<ConfigurationDifference> differences;
  for (const auto& [name, value] : present) {
    const auto old = old_values.find(name);
    const std::string stored_value = old == old_values.end() ? "" : old->second;
    if (old == old_values.end() || stored_value != value) differences.push_back({name, stored_value, value});
  }
  for (const auto& [name, value] : stored) {
    if (!new_values.contains(name)) differences.push_back({name, value, ""});
  }
  return differences;
}

void check_same_architecture(const Configuration& stored, const Configuration& present, const std::string& where) {
  if (stored.empty()) return;
  const std::vector<ConfigurationDifference> differences = compare_configuration(stored, present);
  std::vector<std::string> texts;
  for (const ConfigurationDifference& difference : differences) {
    // An option that one of two versions of this program does not know: the tensors decide.
    if (difference.stored.empty() || difference.present.empty()) continue;
    texts.push_back(
        fmt::format("{} is {} in the checkpoint and {} here", difference.name, difference.stored, difference.present));
  }
  if (texts.empty()) return;
  throw UserError(fmt::format("the checkpoint {} is of another model: {}", where, fmt::join(texts, "; ")),
                  "give the checkpoint's architecture, or another --load");
}

}  // namespace megalith
