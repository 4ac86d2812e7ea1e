// The options of mixtures of experts, of multi-head latent attention and of multi-token prediction; parts of
// ModelConfig in files of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"
#include "nn/expert_kinds.h"

namespace megalith {

// Most options of a model change what its weights mean; those that do not say so.
inline constexpr OptionTraits kOfModel{.changes_weights = true, .in_toy = InToy::kKept};

enum class RouterPrecision { kModel, kFp32, kFp64 };

// Read only with num_experts.
struct ExpertOptions {
  std::optional<int64_t> num_experts;  // 0 is none
  // Which layers have experts: N is every N-th, from the first on; or a list, one entry a layer: "([0]*3+[1]*58)".
  std::string moe_layer_freq = "1";
  std::optional<int64_t> moe_ffn_hidden_size;  // of one expert; default: ffn_hidden_size
  int64_t moe_router_topk = 2;
  RouterBalancing moe_router_load_balancing_type = RouterBalancing::kAuxLoss;
  double moe_aux_loss_coeff = 0;
  std::optional<double> moe_z_loss_coeff;
  std::optional<double> moe_input_jitter_eps;
  bool moe_router_pre_softmax = false;
  RouterScore moe_router_score_function = RouterScore::kSoftmax;
  RouterPrecision moe_router_dtype = RouterPrecision::kModel;
  std::optional<int64_t> moe_router_num_groups;
  std::optional<int64_t> moe_router_group_topk;
  GroupScore moe_router_group_score = GroupScore::kTopSum;
  std::optional<double> moe_router_topk_scaling_factor;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  bool moe_router_force_load_balancing = false;
  std::string moe_token_dispatcher_type = "allgather";
  std::optional<double> moe_expert_capacity_factor;  // 0 and below: none
  bool moe_pad_expert_input_to_capacity = false;
  DropPolicy moe_token_drop_policy = DropPolicy::kProbability;
  std::optional<int64_t> moe_shared_expert_intermediate_size;  // of all shared experts together
  std::optional<int64_t> num_shared_experts;                   // or their number, each as wide as an expert
  bool moe_shared_expert_overlap = false;

  void visit_experts(OptionVisitor& v);

  bool has_experts() const { return num_experts.value_or(0) > 0; }
  bool has_capacity() const { return moe_expert_capacity_factor.value_or(0) > 0; }
  DispatcherKind dispatcher() const {
    return moe_token_dispatcher_type == "allgather" ? DispatcherKind::kAllGather : DispatcherKind::kAllToAll;
  }
};

enum class RopeType { kRope, kYarn };

// Read only with multi_latent_attention. The names of channels are Megatron-LM's: a head's query and key have
// qk_head_dim + qk_pos_emb_head_dim of them.
struct LatentOptions {
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 32, qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;
  RopeType rope_type = RopeType::kYarn;
  double rotary_scaling_factor = 1;
  double mscale = 1, mscale_all_dim = 0;
  double beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 4096;

  void visit_latent(OptionVisitor& v);
};

// 1 for a layer with experts, 0 for one without; one entry a layer. UserError when the text is no such expression or
// its length differs from num_layers.
std::vector<int64_t> parse_moe_layer_freq(const std::string& text, int64_t num_layers);
// The text for layers of which the first num_dense have no experts.
std::string moe_layer_freq_text(int64_t num_dense, int64_t num_layers);
// The same text for all that mean the same layers. Errors as parse_moe_layer_freq().
std::string normalised_moe_layer_freq(const std::string& text, int64_t num_layers);

}  // namespace megalith
