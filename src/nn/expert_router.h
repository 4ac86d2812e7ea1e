// Router of a mixture of experts.
//
//   logits = x W^T (+ b), with a soft cap c: c tanh(logits / c)      t tokens, e experts, k of them per token
//   scores  softmax: over all experts (pre-softmax), or over the k chosen logits; sigmoid: each by itself
//   chosen  the k largest scores (+ bias), ties to lower numbers, only in the best groups if experts are grouped
//   weights = scores of the chosen (sigmoid and k > 1: divided by their sum + 1e-20) * scaling_factor
//
//   aux_loss      coeff e / (k T^2) sum_i f_i P_i       over a microbatch's T tokens: f_i have i among their k largest
//                                                       scores, P_i is the sum of i's normalised scores
//   seq_aux_loss  the same per sequence, averaged
//   global_aux_loss  coeff e / (k T D) sum_i g_i P_i    D: tokens of the dp ranks' microbatches together; g_i: the mean
//                                                       over the step's microbatches so far of what i has of D tokens.
//                                                       In evaluation aux_loss
//   z_loss        coeff mean(logsumexp(logits)^2)
//
// Sinkhorn: training picks the k largest logits scaled for even use, evaluation the k largest scores; weights are
// sigmoid(logits) for k = 1, else the softmax over all experts.
//
// Sums and capacities, ceil(T k / e factor), cover the tp and cp ranks that share the microbatch. Sources:
// arXiv:2101.03961 (balance), arXiv:2501.11873 (of a step), arXiv:2202.08906 (z), arXiv:2405.04434 (groups, sequences),
// arXiv:2412.19437 (sigmoid, bias), arXiv:2202.01169 (Sinkhorn).
#pragma once

#include <cstdint>
#include <string>

#include "nn/expert_balance.h"
#include "nn/expert_options.h"
#include "nn/forward.h"
#include "nn/module.h"

namespace megalith {

class MicrobatchTokens;

struct RouterSite {
  std::string weight_name;            // "model.layers.0.mlp.gate.weight"
  std::string bias_name;              // the expert bias'
  std::string linear_bias_name = {};  // the product's, trained; empty: none
  int64_t hidden = 0;
  double init_std = 0.02;
  int64_t layer = 0;
};

class ExpertRouter : public Module {
 public:
  ExpertRouter(const LayerContext& context, const RouterOptions& options, const RouterSite& site);

  struct Routing {
    at::Tensor experts;  // (t, k) int64, as chosen
    at::Tensor weights;  // (t, k) fp32 or fp64, differentiable
    // (t, k) bool: false for dropped pairs and padding. Undefined: all kept, on all tp and cp ranks.
    at::Tensor keep;
    // Most rows per expert of the microbatch; 0: no limit, as in decoding.
    int64_t capacity = 0;
  };
  // x (t, h): this rank's own tokens; without sequence parallelism the caller splits them over tp: tokens [rank * t,
  // (rank + 1) * t) of the b * s. Tokens from num_tokens on (over all tp ranks) are padding: experts 0, weights 0, keep
  // false. Later layers must use the returned x, which carries the objectives. Collective over tp and cp, with
  // global_aux_loss and training also over dp (with
  // ForwardContext::row_length 0, over tp).
  struct Result {
    at::Tensor x;
    Routing routing;
  };
  Result forward(const at::Tensor& x, const ForwardContext& forward, int64_t num_tokens);
  // Forgets the counts of the last step's microbatches.
  void begin_step() { step_counts_ = {}; }

  Parameter& weight() { return *weight_; }
  Parameter* expert_bias() { return bias_; }

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override {
    return weight_->is_trainable() ? 0 : own_forward_flops(shape);
  }

 private:
  friend struct RouterFunction;

  // (n, e) in score_dtype_, without padding.
  at::Tensor compute_logits(const at::Tensor& x, const ForwardContext& forward, const MicrobatchTokens& tokens);
  // (n, k) int64; undefined if tokens choose independently.
  at::Tensor choose_for_all(const at::Tensor& logits, const ForwardContext& forward,
                            const MicrobatchTokens& tokens) const;
  at::Tensor keep_within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t capacity,
                                  const MicrobatchTokens& tokens) const;

  RouterOptions options_;
  RouterSite site_;
  const Groups* groups_;
  Kernels kernels_;
  uint64_t jitter_key_;
  at::ScalarType product_dtype_, weight_dtype_, score_dtype_;
  Parameter* weight_;
  Parameter* linear_bias_ = nullptr;
  Parameter* bias_ = nullptr;
  StepCounts step_counts_;
};

// bias += rate * sign(mean of counts - counts), after an optimizer step; counts (e) of the global batch. Source:
// arXiv:2408.15664.
void update_expert_bias(Parameter& bias, const at::Tensor& counts, double rate);

}  // namespace megalith
