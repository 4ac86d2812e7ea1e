// The architecture of a model, in Megatron-LM's option names; filled by a preset, a Hugging Face folder or flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "models/expert_options.h"
#include "ops/expert_activation/kind.h"

namespace megalith {

enum class Normalization { kLayerNorm, kRmsNorm };
enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone };

struct ModelConfig : ExpertOptions, LatentOptions {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  std::optional<int64_t> ffn_hidden_size;  // default: 4 h; with swiglu int(8h/3 / 64) * 64
  int64_t num_attention_heads = 0;
  std::optional<int64_t> kv_channels;  // head dim; default h / heads
  bool group_query_attention = false;
  int64_t num_query_groups = 1;  // read only with group_query_attention
  std::optional<int64_t> vocab_size;
  int64_t make_vocab_size_divisible_by = 128;
  int64_t max_position_embeddings = 0;

  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  bool use_rotary_position_embeddings = false;  // Megatron's old spelling of rope; read position_embedding()
  double rotary_base = 10000;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  bool use_rope_scaling = false;  // the Llama 3.1 rule
  double rope_scaling_factor = 8;
  double rope_scaling_low_freq_factor = 1;
  double rope_scaling_high_freq_factor = 4;
  int64_t rope_scaling_original_max_position_embeddings = 8192;

  bool swiglu = false;
  bool squared_relu = false, openai_gelu = false;
  bool bias_gelu_fusion = true;  // Megatron's: it changes the form of GELU; read activation()
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;
  bool add_bias_linear = true;  // biases of linear layers need both switches; read has_linear_bias()
  bool disable_bias_linear = false;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;  // of heads; of latent vectors with multi_latent_attention
  bool is_causal = true;      // a token sees only itself and those before it
  bool untie_embeddings_and_output_weights = false;
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;

  std::optional<int64_t> mtp_num_layers;  // multi-token prediction modules; 0 is none
  double mtp_loss_scaling_factor = 0.1;

  // Kept from a Hugging Face config for export and generation.
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  void visit(OptionVisitor& v);

  // Derived.
  PositionEmbedding position_embedding() const;
  bool has_linear_bias() const { return add_bias_linear && !disable_bias_linear; }
  int64_t head_dim() const;
  int64_t num_kv_heads() const;
  int64_t ffn_size() const;
  // SiLU with swiglu, and then gated; otherwise one of GELU's forms or squared ReLU.
  ops::ActivationKind activation() const;
  int64_t expert_ffn_size() const { return moe_ffn_hidden_size.value_or(ffn_size()); }
  int64_t shared_expert_size() const;  // 0: none
  int64_t num_prediction_modules() const { return mtp_num_layers.value_or(0); }
  // Whether a layer, by its number in the whole model, has experts; those of prediction modules are as the last is.
  bool has_experts_at(int64_t layer) const;
  // Channels of a head's query and key, and of its value.
  int64_t query_head_dim() const { return multi_latent_attention ? qk_head_dim + qk_pos_emb_head_dim : head_dim(); }
  int64_t value_head_dim() const { return multi_latent_attention ? v_head_dim : head_dim(); }
  int64_t padded_vocab_size(int64_t tp) const;  // rounded up to make_vocab_size_divisible_by * tp
};

// Everything wrong with the architecture at once: missing sizes, divisibility, what no family here provides.
std::vector<UserError> check_model_config(const ModelConfig& config);

// What does not divide over the ranks that share a layer: tp of them its dense parts, ep its experts, etp each of
// those.
struct ModelSplit {
  int64_t tp = 1, ep = 1, etp = 1;
};
std::vector<UserError> check_model_layout(const ModelConfig& config, const ModelSplit& split);

}  // namespace megalith
