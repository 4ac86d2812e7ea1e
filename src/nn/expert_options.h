// Mixtures of experts' options (expert_router.h, moe_layer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/option.h"
#include "core/error.h"

namespace megalith {

enum class RouterScore { kSoftmax, kSigmoid };
enum class RouterBalancing { kNone, kAuxLoss, kSeqAuxLoss, kGlobalAuxLoss, kSinkhorn };
enum class RouterPrecision { kModel, kFp32, kFp64 };
// A group's score: the sum of its k / open groups best; its best; the sum of its two best.
enum class GroupScore { kTopSum, kMax, kTwo };
enum class DropPolicy { kProbability, kPosition };
enum class DispatcherKind { kAllGather, kAllToAll };

struct RouterOptions {
  std::optional<int64_t> num_experts;  // 0 is none
  int64_t moe_router_topk = 2;
  RouterBalancing moe_router_load_balancing_type = RouterBalancing::kAuxLoss;
  double moe_aux_loss_coeff = 0;
  std::optional<double> moe_z_loss_coeff;
  // Training scales the router's x by uniform noise in 1 ± eps.
  std::optional<double> moe_input_jitter_eps;
  std::optional<double> router_logit_softcapping;  // 0: none
  bool moe_router_pre_softmax = false;
  RouterScore moe_router_score_function = RouterScore::kSoftmax;
  RouterPrecision moe_router_dtype = RouterPrecision::kModel;  // of the product and after
  std::optional<int64_t> moe_router_num_groups;
  std::optional<int64_t> moe_router_group_topk;
  GroupScore moe_router_group_score = GroupScore::kTopSum;
  std::optional<double> moe_router_topk_scaling_factor;
  // Float32, moved by update_expert_bias(), not trained.
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  bool moe_router_force_load_balancing = false;      // token i goes to experts i k, i k + 1, … (mod e)
  std::optional<double> moe_expert_capacity_factor;  // 0 and below: none
  bool moe_pad_expert_input_to_capacity = false;
  DropPolicy moe_token_drop_policy = DropPolicy::kProbability;

  void visit_router(OptionVisitor& v);
  void visit_capacity(OptionVisitor& v);

  int64_t expert_count() const { return num_experts.value_or(0); }
  bool has_experts() const { return expert_count() > 0; }
  // global_aux_loss is on.
  bool balances_over_step() const {
    return has_experts() && moe_router_load_balancing_type == RouterBalancing::kGlobalAuxLoss &&
           moe_aux_loss_coeff != 0;
  }
  bool has_capacity() const { return moe_expert_capacity_factor.value_or(0) > 0; }
};

// If num_experts > 0.
void check_router(const RouterOptions& options, std::vector<UserError>& errors);
void check_capacity(const RouterOptions& options, std::vector<UserError>& errors);

struct ExpertOptions : RouterOptions {
  // Every N-th layer from the first; or one entry a layer: "([0]*3+[1]*58)".
  std::string moe_layer_freq = "1";
  std::optional<int64_t> moe_ffn_hidden_size;  // default: ffn_hidden_size
  std::string moe_token_dispatcher_type = "allgather";
  std::optional<int64_t> moe_shared_expert_intermediate_size;  // all together
  std::optional<int64_t> num_shared_experts;                   // each as wide as an expert
  bool moe_shared_expert_overlap = false;
  bool moe_apply_probs_on_input = false;  // weighs rows before the experts

  void visit_experts(OptionVisitor& v);

  DispatcherKind dispatcher() const {
    return moe_token_dispatcher_type == "allgather" ? DispatcherKind::kAllGather : DispatcherKind::kAllToAll;
  }
};

}  // namespace megalith
