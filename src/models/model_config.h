// The architecture of a model, in Megatron-LM's option names; filled by a preset, a Hugging Face folder or flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/option.h"

namespace megalith {

enum class Normalization { kLayerNorm, kRmsNorm };
enum class PositionEmbedding { kLearnedAbsolute, kRope, kNone };

struct ModelConfig {
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
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  bool add_bias_linear = true;  // biases of linear layers need both switches; read has_linear_bias()
  bool disable_bias_linear = false;
  bool add_qkv_bias = false;
  bool untie_embeddings_and_output_weights = false;
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;

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
  int64_t padded_vocab_size(int64_t tp) const;  // rounded up to make_vocab_size_divisible_by * tp
};

// Everything wrong with the architecture at once: missing sizes, divisibility, what no family here provides.
std::vector<UserError> check_model_config(const ModelConfig& config);

// What does not divide over `tp` tensor-parallel ranks.
std::vector<UserError> check_model_layout(const ModelConfig& config, int64_t tp);

}  // namespace megalith
