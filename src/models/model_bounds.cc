#include "models/model_bounds.h"

#include <algorithm>
#include <string_view>

#include "config/option_checks.h"
#include "models/layer_pattern.h"

namespace megalith {
namespace {

constexpr const char* kBoundsRemedy = "no published model comes near this bound: correct the value";

double in_double(int64_t value) { return static_cast<double>(value); }

// Each stream of a joint block, and each single block, has modulation, projections, output and MLP.
double flux_matrix_elements(const ModelConfig& config) {
  const double h = in_double(config.hidden_size), f = in_double(config.ffn_size());
  const double stream = (6 + 3 + 1) * h * h + 2 * h * f, single = (3 + 3) * h * h + h * f + (h + f) * h;
  const double vectors = (config.guidance_embed ? 2 : 1) * (in_double(config.model_channels) * h + h * h);
  const double ends = h * (2 * in_double(config.in_channels) + in_double(config.context_dim)) +
                      in_double(config.vec_in_dim) * h + h * h + 2 * h * h;
  return in_double(config.num_joint_layers) * 2 * stream + in_double(config.num_single_layers) * single + vectors +
         ends;
}

int64_t num_layers_with_experts(const ModelConfig& config) {
  if (!config.has_experts()) return 0;
  try {
    const std::vector<int64_t> layers = parse_moe_layer_freq(config.moe_layer_freq, config.num_all_layers());
    return std::count(layers.begin(), layers.end(), 1);
  } catch (const UserError&) {
    return config.num_all_layers();
  }
}

void check_products(const ModelConfig& config, std::vector<UserError>& errors) {
  const int64_t layers = config.num_all_layers() + config.num_prediction_modules();
  const auto check_parts = [&](std::string_view name, int64_t count) {
    if (layers * count <= kMostLayerParts) return;
    errors.emplace_back(fmt::format("num_layers {} times {} {} is {}, expected at most {}", layers, name, count,
                                    layers * count, kMostLayerParts),
                        kBoundsRemedy);
  };
  check_parts("num_attention_heads", config.num_attention_heads);
  check_parts("num_experts", config.num_experts.value_or(0));
  if (config.shared_expert_size() > kMostFfnWidth) {
    errors.emplace_back(fmt::format("num_shared_experts {} times moe_ffn_hidden_size {} is {}, expected at most {}",
                                    config.num_shared_experts.value_or(0), config.expert_ffn_size(),
                                    config.shared_expert_size(), kMostFfnWidth),
                        kBoundsRemedy);
  }
  const double elements = count_matrix_elements(config);
  if (elements > in_double(kMostParameters)) {
    errors.emplace_back(
        fmt::format("these sizes give {:.3g} parameters (num_layers {}, hidden_size {}, ffn_hidden_size {}, "
                    "num_attention_heads {}, vocab_size {}, num_experts {}), expected at most {:.3g}",
                    elements, config.num_layers, config.hidden_size, config.ffn_size(), config.num_attention_heads,
                    config.vocab_size.value_or(0), config.num_experts.value_or(0), in_double(kMostParameters)),
        kBoundsRemedy);
  }
}

}  // namespace

double count_matrix_elements(const ModelConfig& config) {
  if (config.is_diffusion()) return flux_matrix_elements(config);
  const double h = in_double(config.hidden_size), n = in_double(config.num_attention_heads);
  double attention = 0;
  if (config.multi_latent_attention) {
    const double queries = n * in_double(config.query_head_dim()), latent = in_double(config.kv_lora_rank);
    attention += config.q_lora_rank ? in_double(*config.q_lora_rank) * (h + queries) : h * queries;
    attention += h * (latent + in_double(config.qk_pos_emb_head_dim));
    attention += latent * n * in_double(config.qk_head_dim + config.v_head_dim);
    attention += n * in_double(config.v_head_dim) * h;
  } else {
    // Divisibility is checked elsewhere.
    const double d = config.kv_channels ? in_double(*config.kv_channels) : n > 0 ? h / n : 0;
    attention = h * d * (2 * n + 2 * in_double(config.num_kv_heads()));
  }
  const double matrices = config.is_gated() ? 3 : 2, experts = in_double(config.num_experts.value_or(0));
  const double dense = matrices * h * in_double(config.ffn_size());
  const double mixture = experts * (matrices * h * in_double(config.expert_ffn_size()) + h) +
                         matrices * h * in_double(config.shared_expert_size());
  const int64_t mixtures = num_layers_with_experts(config);
  const int64_t all = config.num_all_layers();
  const double layers = in_double(all), modules = in_double(config.num_prediction_modules());
  const double convolution = 4 * h * h + h * in_double(config.conv_kernel_size);
  const double convolutions = in_double(config.num_convolutions());
  double elements = (layers - convolutions) * attention + convolutions * convolution;
  elements += in_double(mixtures) * mixture + in_double(all - mixtures) * dense;
  // A decoder layer with an encoder also has cross-attention.
  if (config.has_encoder()) elements += in_double(config.num_decoder_layers()) * attention;
  // A prediction module is a layer and a projection of two streams to one.
  const double mixer = config.has_convolution_at(config.num_layers - 1) ? convolution : attention;
  elements += modules * (mixer + std::max(dense, mixture) + 2 * h * h);
  const double towers = in_double(config.num_towers());
  const double tables = config.untie_embeddings_and_output_weights ? 2 : towers;
  elements += tables * h * in_double(config.vocab_size.value_or(0));
  if (config.position_embedding() == PositionEmbedding::kLearnedAbsolute) {
    elements += towers * h * in_double(config.max_position_embeddings);
  }
  elements += towers * h * in_double(config.token_types() + config.biencoder_projection_dim);
  // A BERT's head transform, and its pooler.
  if (config.model_type == ModelType::kBert) elements += h * h * (config.bert_binary_head ? 2 : 1);
  return elements;
}

std::vector<UserError> check_model_bounds(const ModelConfig& config) {
  std::vector<UserError> errors;
  ModelConfig given = config;
  if (given.vocab_size == 0) given.vocab_size.reset();
  check_ranges(OptionSet(given), errors);
  if (errors.empty()) check_products(config, errors);
  return errors;
}

}  // namespace megalith
