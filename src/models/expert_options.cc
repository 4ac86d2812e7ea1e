// Declarations, and the expression that says which layers have experts.
#include "models/expert_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "models/model_bounds.h"

namespace megalith {

void ExpertOptions::visit_experts(OptionVisitor& v) {
  v.group("Mixture of experts", kOfModel);
  v.field("num_experts", num_experts, "Experts in the place of an MLP. Default and 0: none.")
      .at_least(0)
      .at_most(kMostExperts)
      .alias("moe_num_experts")
      .in_toy(InToy::kMade);
  v.field("moe_layer_freq", moe_layer_freq,
          "Which layers have experts: N means every N-th, from the first on; a list has one entry a layer, 1 with "
          "experts, such as ([0]*3+[1]*58).")
      .in_toy(InToy::kMade);
  v.field("moe_ffn_hidden_size", moe_ffn_hidden_size, "Width inside one expert. Default: ffn_hidden_size.")
      .at_least(1)
      .at_most(kMostFfnWidth)
      .in_toy(InToy::kMade);
  v.field("moe_router_topk", moe_router_topk, "Experts that each token goes to.")
      .at_least(1)
      .at_most(kMostExperts)
      .alias("moe_top_k")
      .in_toy(InToy::kMade);
  v.choice("moe_router_load_balancing_type", moe_router_load_balancing_type,
           {"none", "aux_loss", "seq_aux_loss", "sinkhorn"},
           "What keeps the experts evenly loaded: a loss over each microbatch, a loss over each sequence, an "
           "assignment by Sinkhorn's iteration, or nothing.")
      .changes_weights(false);
  v.field("moe_aux_loss_coeff", moe_aux_loss_coeff, "Weight of that loss; perfectly balanced experts give 1 times it.")
      .at_least(0)
      .alias("moe_loss_weight")
      .changes_weights(false);
  v.field("moe_z_loss_coeff", moe_z_loss_coeff, "Weight of the mean squared logsumexp of the router's logits.")
      .at_least(0)
      .changes_weights(false);
  v.field("moe_input_jitter_eps", moe_input_jitter_eps,
          "In training the router sees its input times uniform noise between 1 - eps and 1 + eps.")
      .at_least(0)
      .alias("moe_jitter_eps")
      .changes_weights(false);
  v.field("moe_router_pre_softmax", moe_router_pre_softmax,
          "Take the softmax over all experts before the best are chosen, instead of over those chosen.");
  v.choice("moe_router_score_function", moe_router_score_function, {"softmax", "sigmoid"},
           "What makes scores of the router's logits.");
  v.choice("moe_router_dtype", moe_router_dtype, {"model", "fp32", "fp64"},
           "Type of the router's product; scores are at least fp32 in any case.")
      .in_toy(InToy::kMade);
  v.field("moe_router_num_groups", moe_router_num_groups,
          "Groups of experts, of which a token's best moe_router_group_topk are open to it.")
      .at_least(1)
      .at_most(kMostExperts)
      .in_toy(InToy::kMade);
  v.field("moe_router_group_topk", moe_router_group_topk, "Groups that are open to a token.")
      .at_least(1)
      .at_most(kMostExperts)
      .in_toy(InToy::kMade);
  v.choice("moe_router_group_score", moe_router_group_score, {"sum", "max"},
           "What a group is judged by: the sum of its moe_router_topk / moe_router_group_topk best scores "
           "(Megatron-LM, DeepSeek-V3), or its best (DeepSeek-V2).");
  v.field("moe_router_topk_scaling_factor", moe_router_topk_scaling_factor,
          "Factor of the chosen experts' weights. Default: 1.")
      .above(0);
  v.field("moe_router_enable_expert_bias", moe_router_enable_expert_bias,
          "A bias of each expert takes part in the choice, not in the weights, and follows its load: balance without "
          "a loss. For sigmoid scores.");
  v.field("moe_router_bias_update_rate", moe_router_bias_update_rate, "By how much the bias moves in each step.")
      .at_least(0)
      .changes_weights(false);
  v.field("moe_router_force_load_balancing", moe_router_force_load_balancing,
          "Send tokens to experts in turn instead of by their scores: for benchmarks.")
      .changes_weights(false);
  v.field("moe_token_dispatcher_type", moe_token_dispatcher_type,
          "How tokens reach the ranks of their experts: allgather, or alltoall; flex is alltoall here.")
      .words({"allgather", "alltoall", "flex"})
      .changes_weights(false);
  v.field("moe_expert_capacity_factor", moe_expert_capacity_factor,
          "An expert takes at most this times its even share of a microbatch's tokens; others are dropped, in training "
          "and evaluation. Default, 0 and below: none are. Generated texts are never limited.")
      .alias("moe_capacity_factor")
      .changes_weights(false);
  v.field("moe_pad_expert_input_to_capacity", moe_pad_expert_input_to_capacity,
          "Fill every expert's input up to its capacity, so that shapes never change.")
      .changes_weights(false);
  v.choice("moe_token_drop_policy", moe_token_drop_policy, {"probs", "position"},
           "Which tokens are dropped: those of the lowest weight, or those of the last positions in the microbatch's "
           "sequences.")
      .changes_weights(false);
  v.field("moe_shared_expert_intermediate_size", moe_shared_expert_intermediate_size,
          "Width of the experts that see every token, together. Default: there are none.")
      .at_least(0)
      .at_most(kMostFfnWidth)
      .in_toy(InToy::kMade);
  v.field("num_shared_experts", num_shared_experts, "The same, as a number of experts of moe_ffn_hidden_size.")
      .at_least(0)
      .at_most(kMostExperts)
      .in_toy(InToy::kMade);
  v.field("moe_shared_expert_overlap", moe_shared_expert_overlap,
          "Compute the shared expert while tokens are on their way; for alltoall.")
      .changes_weights(false);
}

void LatentOptions::visit_latent(OptionVisitor& v) {
  v.group("Latent attention", kOfModel);
  v.field("multi_latent_attention", multi_latent_attention,
          "Keys and values come from a narrow latent vector of each token (DeepSeek).");
  v.field("q_lora_rank", q_lora_rank, "Width of the queries' latent vector. Default: queries are projected at once.")
      .at_least(1)
      .at_most(kMostWidth)
      .in_toy(InToy::kMade);
  v.field("kv_lora_rank", kv_lora_rank, "Width of the latent vector of keys and values.")
      .at_least(1)
      .at_most(kMostWidth)
      .in_toy(InToy::kMade);
  v.field("qk_head_dim", qk_head_dim, "Channels of a head's query and key without position.")
      .at_least(1)
      .at_most(kMostWidth)
      .alias("qk_nope_head_dim")
      .in_toy(InToy::kMade);
  v.field("qk_pos_emb_head_dim", qk_pos_emb_head_dim, "Channels of a head's query and key that are rotated.")
      .at_least(2)
      .at_most(kMostWidth)
      .alias("qk_rope_head_dim")
      .in_toy(InToy::kMade);
  v.field("v_head_dim", v_head_dim, "Channels of a head's value.").at_least(1).at_most(kMostWidth).in_toy(InToy::kMade);
  v.choice("rope_type", rope_type, {"rope", "yarn"},
           "Rotary frequencies of latent attention: as they are, or stretched by YaRN's rule.");
  v.field("rotary_scaling_factor", rotary_scaling_factor, "YaRN: how far the length is stretched.").at_least(1);
  v.field("mscale", mscale, "YaRN: factor of the rotary tables' scale.").at_least(0);
  v.field("mscale_all_dim", mscale_all_dim, "YaRN: factor of the softmax's scale.").at_least(0);
  v.field("beta_fast", beta_fast, "YaRN: frequencies that turn more often than this over the length are kept.")
      .above(0);
  v.field("beta_slow", beta_slow, "YaRN: frequencies that turn less often than this are stretched.").above(0);
  v.field("original_max_position_embeddings", original_max_position_embeddings, "YaRN: the length before stretching.")
      .unit("tokens")
      .at_least(1)
      .at_most(kMostPositions);
}

namespace {

// sum := term ('+' term)*    term := factor ('*' factor)*    factor := number | '[' numbers ']' | '(' sum ')'
// A value is a number or a list; lists are added end to end and multiplied by numbers, as in Python.
class LayerPattern {
 public:
  explicit LayerPattern(const std::string& text) : text_(text) {
    for (const char c : text) {
      if (c != ' ' && c != '\'' && c != '"') rest_ += c;
    }
  }

  struct Value {
    bool is_list = false;
    int64_t number = 0;
    std::vector<int64_t> list;
  };

  Value parse() {
    const Value value = sum();
    if (at_ != rest_.size()) refuse();
    return value;
  }

  [[noreturn]] void refuse() const {
    throw UserError(fmt::format("moe_layer_freq '{}' is no layer pattern", text_),
                    "write a number N (every N-th layer), or a list such as [0,1,1] or ([0]*3+[1]*58)");
  }

 private:
  static constexpr size_t kLongest = 1 << 16;

  bool take(char c) {
    if (at_ >= rest_.size() || rest_[at_] != c) return false;
    ++at_;
    return true;
  }
  int64_t number() {
    int64_t value = 0;
    const char* begin = rest_.data() + at_;
    const auto [end, error] = std::from_chars(begin, rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) refuse();
    at_ += static_cast<size_t>(end - begin);
    return value;
  }
  Value factor() {
    if (take('(')) {
      if (++depth_ > 20) refuse();
      const Value value = sum();
      --depth_;
      if (!take(')')) refuse();
      return value;
    }
    if (!take('[')) return {.number = number()};
    Value value{.is_list = true};
    if (take(']')) return value;
    do {
      value.list.push_back(number());
    } while (take(','));
    if (!take(']')) refuse();
    return value;
  }
  Value term() {
    Value value = factor();
    while (take('*')) {
      const Value other = factor();
      if (value.is_list && other.is_list) refuse();
      if (!value.is_list && !other.is_list) {
        if (other.number != 0 && value.number > static_cast<int64_t>(kLongest) / other.number) refuse();
        value.number *= other.number;
        continue;
      }
      const Value& list = value.is_list ? value : other;
      const int64_t times = value.is_list ? other.number : value.number;
      if (!list.list.empty() && times > static_cast<int64_t>(kLongest / list.list.size())) refuse();
      Value repeated{.is_list = true};
      for (int64_t i = 0; i < times; ++i) repeated.list.insert(repeated.list.end(), list.list.begin(), list.list.end());
      value = std::move(repeated);
    }
    return value;
  }
  Value sum() {
    Value value = term();
    while (take('+')) {
      const Value other = term();
      if (value.is_list != other.is_list) refuse();
      if (value.is_list)
        value.list.insert(value.list.end(), other.list.begin(), other.list.end());
      else
        value.number += other.number;
      if (value.list.size() > kLongest) refuse();
    }
    return value;
  }

  const std::string& text_;
  std::string rest_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<int64_t> parse_moe_layer_freq(const std::string& text, int64_t num_layers) {
  LayerPattern pattern(text);
  const LayerPattern::Value value = pattern.parse();
  std::vector<int64_t> layers = value.list;
  if (!value.is_list) {
    if (value.number < 1) pattern.refuse();
    for (int64_t i = 0; i < num_layers; ++i) layers.push_back(i % value.number == 0 ? 1 : 0);
  }
  if (std::ssize(layers) != num_layers) {
    throw UserError(
        fmt::format("moe_layer_freq '{}' is for {} layers, and num_layers is {}", text, layers.size(), num_layers),
        "give one entry a layer, or a number N for every N-th layer");
  }
  for (const int64_t layer : layers) {
    if (layer != 0 && layer != 1) {
      throw UserError(fmt::format("moe_layer_freq '{}' has the entry {}", text, layer),
                      "1 is a layer with experts, 0 one without");
    }
  }
  return layers;
}

std::string moe_layer_freq_text(int64_t num_dense, int64_t num_layers) {
  if (num_dense == 0) return "1";
  return fmt::format("([0]*{}+[1]*{})", num_dense, num_layers - num_dense);
}

std::string normalised_moe_layer_freq(const std::string& text, int64_t num_layers) {
  const std::vector<int64_t> layers = parse_moe_layer_freq(text, num_layers);
  const auto first = std::find(layers.begin(), layers.end(), 1);
  if (first != layers.end() && std::find(first, layers.end(), 0) == layers.end()) {
    return moe_layer_freq_text(first - layers.begin(), num_layers);
  }
  return fmt::format("[{}]", fmt::join(layers, ","));
}

}  // namespace megalith
