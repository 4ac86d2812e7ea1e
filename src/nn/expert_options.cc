#include "nn/expert_options.h"

#include <string_view>

#include "nn/option_rules.h"

namespace megalith {

void RouterOptions::visit_router(OptionVisitor& v) {
  v.field("moe_router_topk", moe_router_topk, "Number of experts that each token goes to.")
      .within(1, kMostExperts)
      .alias("moe_top_k")
      .in_toy(InToy::kMade);
  v.choice("moe_router_load_balancing_type", moe_router_load_balancing_type,
           {"none", "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn"},
           "What keeps the experts evenly loaded: aux_loss, a loss over each microbatch; seq_aux_loss, a loss over "
           "each sequence; global_aux_loss, one whose loads are those of the step so far on all data-parallel ranks; "
           "sinkhorn, an assignment by Sinkhorn's iteration; or none.")
      .changes_weights(false);
  v.field("moe_aux_loss_coeff", moe_aux_loss_coeff,
          "Weight of the load-balancing loss, which is 1 for perfectly balanced experts.")
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
  v.field("router_logit_softcapping", router_logit_softcapping,
          "The router's logits x become c tanh(x / c) with this c, before all else (Grok). Default and 0: they do not.")
      .at_least(0);
  v.field("moe_router_pre_softmax", moe_router_pre_softmax,
          "Take the softmax over all experts before the best are chosen, instead of over those chosen.");
  v.choice("moe_router_score_function", moe_router_score_function, {"softmax", "sigmoid"},
           "How the router's logits become scores.");
  v.choice("moe_router_dtype", moe_router_dtype, {"model", "fp32", "fp64"},
           "Type of the router's product; its scores are at least fp32 in any case.")
      .in_toy(InToy::kMade);
  v.field("moe_router_num_groups", moe_router_num_groups,
          "Number of groups that the experts are divided into; a token may only use experts of its best "
          "moe_router_group_topk groups.")
      .within(1, kMostExperts)
      .in_toy(InToy::kMade);
  v.field("moe_router_group_topk", moe_router_group_topk, "Number of groups whose experts a token may use.")
      .within(1, kMostExperts)
      .in_toy(InToy::kMade);
  v.choice(
      "moe_router_group_score", moe_router_group_score, {"sum", "max", "two"},
      "How a group is scored: sum adds up its moe_router_topk / moe_router_group_topk best experts' scores "
      "(Megatron-LM), max takes its best one (DeepSeek-V2), two adds up its two best (DeepSeek-V3, whose published "
      "sizes make it the same as sum).");
  v.field("moe_router_topk_scaling_factor", moe_router_topk_scaling_factor,
          "The weights of the chosen experts are multiplied by this. Default: 1.")
      .above(0);
  v.field("moe_router_enable_expert_bias", moe_router_enable_expert_bias,
          "Balance experts without a loss: each expert's bias follows its load, and is added to its score for the "
          "choice of experts, not for their weights. Needs sigmoid scores.");
  v.field("moe_router_bias_update_rate", moe_router_bias_update_rate, "How much an expert's bias moves in each step.")
      .at_least(0)
      .changes_weights(false);
  v.field("moe_router_force_load_balancing", moe_router_force_load_balancing,
          "Send tokens to experts in turn instead of by their scores: for benchmarks.")
      .changes_weights(false);
}

void RouterOptions::visit_capacity(OptionVisitor& v) {
  v.field("moe_expert_capacity_factor", moe_expert_capacity_factor,
          "An expert takes at most this times its even share of a microbatch's tokens; the others are dropped, in "
          "training and evaluation. Default, 0 and below: no token is dropped. Generation never drops any.")
      .alias("moe_capacity_factor")
      .changes_weights(false);
  v.field("moe_pad_expert_input_to_capacity", moe_pad_expert_input_to_capacity,
          "Fill every expert's input up to its capacity, so that shapes never change.")
      .changes_weights(false);
  v.choice("moe_token_drop_policy", moe_token_drop_policy, {"probs", "position"},
           "Which tokens an expert drops: probs drops those of the lowest weight, position those at the last positions "
           "in the microbatch's sequences.")
      .changes_weights(false);
}

void ExpertOptions::visit_experts(OptionVisitor& v) {
  v.group("Mixture of experts", kOfModel.of(kTextModels - kBiencoders));
  v.field("num_experts", num_experts, "Number of experts that replace a layer's MLP. Default and 0: none.")
      .within(0, kMostExperts)
      .alias("moe_num_experts")
      .in_toy(InToy::kMade);
  v.field("moe_layer_freq", moe_layer_freq,
          "Which layers have experts. N: every N-th, beginning with the first. A list has one entry for each layer, 1 "
          "for experts and 0 for an MLP, such as ([0]*3+[1]*58).")
      .in_toy(InToy::kMade);
  v.field("moe_ffn_hidden_size", moe_ffn_hidden_size, "Width inside one expert. Default: ffn_hidden_size.")
      .within(1, kMostFfnWidth)
      .in_toy(InToy::kMade);
  visit_router(v);
  v.field("moe_token_dispatcher_type", moe_token_dispatcher_type,
          "How tokens reach the ranks of their experts: allgather or alltoall; flex means alltoall here.")
      .words({"allgather", "alltoall", "flex"})
      .changes_weights(false);
  visit_capacity(v);
  v.field("moe_shared_expert_intermediate_size", moe_shared_expert_intermediate_size,
          "Total width of the shared experts, which see every token. Default: there are none.")
      .within(0, kMostFfnWidth)
      .in_toy(InToy::kMade);
  v.field("num_shared_experts", num_shared_experts,
          "Number of shared experts, each as wide as moe_ffn_hidden_size; another way to give "
          "moe_shared_expert_intermediate_size.")
      .within(0, kMostExperts)
      .in_toy(InToy::kMade);
  v.field(
      "moe_apply_probs_on_input", moe_apply_probs_on_input,
      "Multiply an expert's input by the router's weight, instead of its result (Llama 4). Needs moe_router_topk 1.");
  v.field("moe_shared_expert_overlap", moe_shared_expert_overlap,
          "Compute the shared experts while tokens are on their way to the others; needs moe_token_dispatcher_type "
          "alltoall.")
      .changes_weights(false);
}

namespace {

void check_router_groups(const RouterOptions& options, int64_t num_groups, int64_t open_groups,
                         std::vector<UserError>& errors) {
  const int64_t topk = options.moe_router_topk, num_experts = options.expert_count();
  if (num_groups < 1 || open_groups < 1) {
    errors.emplace_back(fmt::format("moe_router_num_groups is {} and moe_router_group_topk {}, expected at least 1",
                                    num_groups, open_groups),
                        "leave both away for experts in no groups");
  } else if (num_experts % num_groups != 0) {
    errors.emplace_back(fmt::format("moe_router_num_groups {} does not divide num_experts {}", num_groups, num_experts),
                        "change one of them");
  } else if (open_groups > num_groups) {
    errors.emplace_back(
        fmt::format("moe_router_group_topk {} is more than moe_router_num_groups {}", open_groups, num_groups),
        fmt::format("set it to {} or less", num_groups));
  } else if (topk > open_groups * (num_experts / num_groups)) {
    errors.emplace_back(fmt::format("moe_router_topk {} is more than the {} experts of {} groups", topk,
                                    open_groups * (num_experts / num_groups), open_groups),
                        "lower moe_router_topk, or raise moe_router_group_topk");
  } else if (options.moe_router_group_score == GroupScore::kTopSum && topk < open_groups) {
    errors.emplace_back(fmt::format("a group is judged by its {} / {} best scores, which is none", topk, open_groups),
                        "lower moe_router_group_topk, or set moe_router_group_score to max");
  } else if (options.moe_router_group_score == GroupScore::kTwo && num_experts / num_groups < 2) {
    errors.emplace_back(fmt::format("moe_router_group_score two with groups of {} expert", num_experts / num_groups),
                        "lower moe_router_num_groups, or set moe_router_group_score to max");
  }
}

}  // namespace

void check_router(const RouterOptions& options, std::vector<UserError>& errors) {
  const int64_t topk = options.moe_router_topk, num_experts = options.expert_count();
  if (topk > num_experts) {
    errors.emplace_back(fmt::format("moe_router_topk {} is more than num_experts {}", topk, num_experts),
                        fmt::format("set moe_router_topk to {} or less", num_experts));
  } else if (topk < 1) {
    errors.emplace_back(fmt::format("moe_router_topk is {}, expected at least 1", topk),
                        "choose at least one expert for a token");
  }
  if (options.moe_router_enable_expert_bias && options.moe_router_score_function != RouterScore::kSigmoid) {
    errors.emplace_back("moe_router_enable_expert_bias is for sigmoid scores, and moe_router_score_function is softmax",
                        "set moe_router_score_function to sigmoid, or leave the bias away");
  }
  const bool is_sinkhorn = options.moe_router_load_balancing_type == RouterBalancing::kSinkhorn;
  if (is_sinkhorn && (options.moe_router_num_groups || options.moe_router_enable_expert_bias)) {
    errors.emplace_back("moe_router_load_balancing_type sinkhorn does not go with groups of experts or an expert bias",
                        "leave them away");
  }
  if (is_sinkhorn && options.has_capacity()) {
    errors.emplace_back("moe_expert_capacity_factor does not go with moe_router_load_balancing_type sinkhorn",
                        "leave one of them away");
  }
  if (options.moe_router_num_groups.has_value() != options.moe_router_group_topk.has_value()) {
    errors.emplace_back("moe_router_num_groups and moe_router_group_topk are given together or not at all",
                        "give both, or neither");
  } else if (options.moe_router_num_groups) {
    check_router_groups(options, *options.moe_router_num_groups, *options.moe_router_group_topk, errors);
  }
  if (options.moe_input_jitter_eps.value_or(0) >= 1) {
    errors.emplace_back(fmt::format("moe_input_jitter_eps is {}, expected below 1", *options.moe_input_jitter_eps),
                        "Switch Transformers used 0.01");
  }
}

void check_capacity(const RouterOptions& options, std::vector<UserError>& errors) {
  if (options.moe_pad_expert_input_to_capacity && !options.has_capacity()) {
    errors.emplace_back("moe_pad_expert_input_to_capacity without a capacity",
                        "set moe_expert_capacity_factor, or leave the padding out");
  }
}

}  // namespace megalith
