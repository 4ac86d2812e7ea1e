// The heads of attention, ordinary (nn/attention.h) and latent (nn/latent_attention.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/rotary_options.h"

namespace megalith {

// What stands in a softmax's denominator beside the keys: nothing, 1, or exp of a number that each head learns.
enum class SoftmaxType { kVanilla, kOffByOne, kLearnable };

struct AttentionOptions {
  int64_t num_attention_heads = 0;
  std::optional<int64_t> kv_channels;  // head dim; default h / heads
  bool group_query_attention = false;
  int64_t num_query_groups = 1;                 // read only with group_query_attention
  std::optional<double> query_pre_attn_scalar;  // scores are divided by its root; default: channels of a head
  SoftmaxType softmax_type = SoftmaxType::kVanilla;

  void visit_heads(OptionVisitor& v);

  int64_t num_kv_heads() const { return group_query_attention ? num_query_groups : num_attention_heads; }
};

// For num_attention_heads above 0.
void check_heads(const AttentionOptions& options, std::vector<UserError>& errors);

// Read only with multi_latent_attention. The names of channels are Megatron-LM's: a head's query and key have
// qk_head_dim + qk_pos_emb_head_dim of them.
struct LatentAttentionOptions : YarnOptions {
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;  // unset: queries are projected at once
  int64_t kv_lora_rank = 32, qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;

  void visit_latent(OptionVisitor& v);
};

void check_latent(const LatentAttentionOptions& options, std::vector<UserError>& errors);

}  // namespace megalith
