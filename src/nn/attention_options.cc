#include "nn/attention_options.h"

#include "nn/option_rules.h"

namespace megalith {

void AttentionOptions::visit_heads(OptionVisitor& v) {
  v.field("num_attention_heads", num_attention_heads, "Number of query heads.")
      .within(0, kMostHeads)
      .in_toy(InToy::kMade)
      .read_by(kAllModels);
  v.field("kv_channels", kv_channels, "Channels of one attention head. Default: hidden_size / num_attention_heads.")
      .within(1, kMostWidth)
      .in_toy(InToy::kMade);
  v.field("group_query_attention", group_query_attention, "Let groups of query heads share a key and a value head.");
  v.field("num_query_groups", num_query_groups, "Number of key and value heads; read only with group_query_attention.")
      .within(1, kMostHeads)
      .in_toy(InToy::kMade);
  v.field("query_pre_attn_scalar", query_pre_attn_scalar,
          "Attention's scores are divided by the square root of this number. Default: the channels of a head.")
      .above(0);
  v.choice("softmax_type", softmax_type, {"vanilla", "off-by-one", "learnable"},
           "What attention's softmax adds to its denominator, so that a token may attend to nothing: vanilla nothing, "
           "off-by-one 1, learnable exp(z) with a number z that each head learns (attention sinks, gpt-oss).")
      .read_by(kStacks);
}

void check_heads(const AttentionOptions& options, std::vector<UserError>& errors) {
  if (options.num_attention_heads % options.num_kv_heads() != 0) {
    errors.emplace_back(fmt::format("num_query_groups {} does not divide num_attention_heads {}",
                                    options.num_query_groups, options.num_attention_heads),
                        fmt::format("set num_query_groups to a divisor of {}", options.num_attention_heads));
  }
}

void LatentAttentionOptions::visit_latent(OptionVisitor& v) {
  v.group("Latent attention", kOfModel.of(kStacks));
  v.field("multi_latent_attention", multi_latent_attention,
          "Keys and values come from a narrow latent vector of each token (DeepSeek).");
  v.field("q_lora_rank", q_lora_rank, "Width of the queries' latent vector. Default: queries have none.")
      .within(1, kMostWidth)
      .toy("10");
  v.field("kv_lora_rank", kv_lora_rank, "Width of the latent vector of keys and values.")
      .within(1, kMostWidth)
      .toy("12");
  v.field("qk_head_dim", qk_head_dim, "Channels of a head's query and key that carry no position.")
      .within(1, kMostWidth)
      .alias("qk_nope_head_dim")
      .toy("4");
  v.field("qk_pos_emb_head_dim", qk_pos_emb_head_dim, "Channels of a head's query and key that are rotated.")
      .within(2, kMostWidth)
      .alias("qk_rope_head_dim")
      .toy("2");
  v.field("v_head_dim", v_head_dim, "Channels of a head's value.").within(1, kMostWidth).toy("3");
  visit_yarn(v);
}

void check_latent(const LatentAttentionOptions& options, std::vector<UserError>& errors) {
  if (options.multi_latent_attention && options.qk_pos_emb_head_dim % 2 != 0) {
    errors.emplace_back(
        fmt::format("qk_pos_emb_head_dim {} is odd: pairs of channels are rotated", options.qk_pos_emb_head_dim),
        "set it to an even number");
  }
}

}  // namespace megalith
