// A mixture of experts, and a shared expert for every token.
//
//   y[i] = sum over the experts j of token i of weights[i, j] expert_j(x[i]) + shared(x[i])
//   expert(x) = down( act(gate x) * up x )   or   down( act(up x) )
//
// Without sequence parallelism tokens are split over tp here, and gathered again. Sources: arXiv:1701.06538,
// arXiv:2401.04088; shared experts: arXiv:2401.06066.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/expert_adapter.h"
#include "nn/expert_placement.h"
#include "nn/expert_router.h"
#include "nn/grouped_linear.h"
#include "nn/layer_options.h"
#include "nn/layer_parts.h"
#include "nn/mlp.h"
#include "nn/token_dispatcher.h"
#include "ops/expert_activation/expert_activation.h"

namespace megalith {

struct MoeSite {
  ExpertNames names = {};
  double output_init_std = 0.02;  // of `down`
  int64_t layer = 0;
  std::optional<ops::ExpertActivation> activation = {};
};

// This rank's experts in two tensors, gate_up (e_local * 2f, h) and down (e_local * h, f), f being this etp rank's part
// (nn/expert_placement.h).
class GroupedExperts : public Module {
 public:
  GroupedExperts(const LayerContext& context, const std::string& name, const LayerOptions& options,
                 const MoeSite& site);

  // (n, h): this rank's part of the weighted results.
  at::Tensor forward(const ExpertRows& rows);

  // Empty if experts are stacked.
  const std::vector<AdaptableLayer>& adaptable() const { return adaptable_; }

 private:
  static at::Tensor multiply(GroupedLinear& linear, ExpertAdapter* adapter, const Activation& x,
                             const at::Tensor& offsets);
  void register_biases(const LayerContext& context, const std::string& name, ExpertPlacements placements);

  ops::ExpertActivation activation_;
  Kernels kernels_;
  SelectiveRecompute policy_;
  bool weighs_inputs_;  // router weights apply before experts
  std::unique_ptr<GroupedLinear> gate_up_, down_;
  std::unique_ptr<ExpertAdapter> up_adapter_, down_adapter_;
  Parameter *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  int64_t first_bias_column_ = 0;
  std::vector<AdaptableLayer> adaptable_;
};

class MoeLayer : public FeedForward {
 public:
  // UserError also if experts are padded to capacity and neither of ep x etp and tp x cp divides the other.
  MoeLayer(const LayerContext& context, const std::string& name, const LayerOptions& options, const MoeSite& site);

  // x's Kept matters only under SelectiveRecompute::moe.
  at::Tensor forward(const Activation& x, const ForwardContext& forward) override;

  ExpertRouter& router() { return router_; }
  GroupedExperts& experts() { return experts_; }

 private:
  at::Tensor transform(const at::Tensor& x, const ForwardContext& forward);

  std::string name_;
  Groups::Pointer tp_;
  bool is_sequence_parallel_;
  SelectiveRecompute policy_;
  int64_t num_capacities_;  // one microbatch's each; 0: no padding
  ExpertRouter router_;
  TokenDispatcher dispatcher_;
  GroupedExperts experts_;
  bool overlaps_shared_expert_;
  std::unique_ptr<Mlp> shared_;
};

}  // namespace megalith
