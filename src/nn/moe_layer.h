// A mixture of experts in the place of an MLP: router, dispatcher, grouped experts, and a shared expert that sees every
// token.
//
//   y[i] = sum over the experts j of token i of weights[i, j] expert_j(x[i]) + shared(x[i])
//   expert(x) = down( act(gate x) * up x )   or   down( act(up x) )
//
// The tokens of a layer are split over tp while they are routed and dispatched, as sequence parallelism has them;
// without it they are split here and gathered again.
// Sources: Shazeer et al. 2017, arXiv:1701.06538; Jiang et al. 2024, arXiv:2401.04088; Dai et al. 2024,
// arXiv:2401.06066 (shared experts).
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

// What only the builder of a model knows.
struct MoeSite {
  ExpertNames names = {};
  double output_init_std = 0.02;  // of `down`
  int64_t layer = 0;              // number in the whole model
  // A form that no option names.
  std::optional<ops::ExpertActivation> activation = {};
};

// The experts of this rank: gate_up (e_local * 2f, h) and down (e_local * h, f) of all of them in one tensor each, f
// being this etp rank's part of an expert; with biases where add_bias_linear asks for them (nn/expert_placement.h).
class GroupedExperts : public Module {
 public:
  // UserError when ep does not divide the experts, or etp an expert's width.
  GroupedExperts(const LayerContext& context, const std::string& name, const LayerOptions& options,
                 const MoeSite& site);

  // (n, h): this rank's part of the results, times the rows' weights. Experts without rows get gradients of zero.
  at::Tensor forward(const ExpertRows& rows);

  // As the targets of adapters are matched with them; none where all experts of a layer are one tensor.
  const std::vector<AdaptableLayer>& adaptable() const { return adaptable_; }

 private:
  static at::Tensor multiply(GroupedLinear& linear, ExpertAdapter* adapter, const Activation& x,
                             const at::Tensor& offsets);
  void register_biases(const LayerContext& context, const std::string& name, ExpertPlacements placements);

  ops::ExpertActivation activation_;
  Kernels kernels_;
  SelectiveRecompute policy_;
  bool weighs_inputs_;  // rows count by the router's weight before the experts, not behind them
  std::unique_ptr<GroupedLinear> gate_up_, down_;
  std::unique_ptr<ExpertAdapter> up_adapter_, down_adapter_;  // null: none
  Parameter *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
  int64_t first_bias_column_ = 0;  // of down_bias_
  std::vector<AdaptableLayer> adaptable_;
};

class MoeLayer : public FeedForward {
 public:
  // name  canonical: "model.layers.0.mlp"
  // UserError when the parallel sizes do not divide what they cut, and when experts are padded to their capacity, but
  // ep x etp ranks are neither a part of one microbatch's ranks (tp x cp) nor those of several; and when the options do
  // not fit one another.
  MoeLayer(const LayerContext& context, const std::string& name, const LayerOptions& options, const MoeSite& site);

  // Router and experts keep what they are given: what is to be kept of x counts only where SelectiveRecompute::moe
  // computes the layer again.
  at::Tensor forward(const Activation& x, const ForwardContext& forward) override;

  ExpertRouter& router() { return router_; }
  GroupedExperts& experts() { return experts_; }

 private:
  at::Tensor transform(const at::Tensor& x, const ForwardContext& forward);

  std::string name_;
  Groups::Pointer tp_;
  bool is_sequence_parallel_;
  SelectiveRecompute policy_;
  int64_t num_capacities_;  // of one microbatch each, that an expert's rows are padded to; 0: no padding
  ExpertRouter router_;
  TokenDispatcher dispatcher_;
  GroupedExperts experts_;
  bool overlaps_shared_expert_;
  std::unique_ptr<Mlp> shared_;  // null without a shared expert
};

}  // namespace megalith
