// The heads of both attentions (attention.h, latent_attention.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/rotary_options.h"

namespace megalith {

// Added to the softmax's denominator: 0, 1, or exp of a learned number per head.
enum class SoftmaxType { kVanilla, kOffByOne, kLearnable };

struct AttentionOptions {
  int64_t num_attention_heads = 0;
  std::optional<int64_t> kv_channels;  // head dim; default h / heads
  bool group_query_attention = false;
  int64_t num_query_groups = 1;
  std::optional<double> query_pre_attn_scalar;  // scores are divided by its root; default: head dim
  SoftmaxType softmax_type = SoftmaxType::kVanilla;

  void visit_heads(OptionVisitor& v);

  int64_t num_kv_heads() const { return group_query_attention ? num_query_groups : num_attention_heads; }
};

// If num_attention_heads > 0.
void check_heads(const AttentionOptions& options, std::vector<UserError>& errors);

// Megatron-LM's names; a head's query and key have qk_head_dim + qk_pos_emb_head_dim channels.
struct LatentAttentionOptions : YarnOptions {
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;  // unset: no latent queries
  int64_t kv_lora_rank = 32, qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;

  void visit_latent(OptionVisitor& v);
};

void check_latent(const LatentAttentionOptions& options, std::vector<UserError>& errors);

}  // namespace megalith
