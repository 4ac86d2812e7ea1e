// The language-model head: logits, or the loss without materialising them (nn/loss_rows.h), over a vocabulary that may
// be split over tensor-parallel ranks.
//
// The loss computes its gradients in forward (ops/linear_cross_entropy): the weight's accumulates into the Parameter's
// buffer, the activations' is kept and returned in backward, which must start with a gradient of one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/embedding.h"
#include "nn/forward.h"
#include "nn/matmul_recipe.h"
#include "nn/module.h"

namespace megalith {

class LmHead : public Module {
 public:
  // tied     the embedding's Parameter to use; nullptr: the head owns its weight
  // softcap  > 0: logits are softcap * tanh(logits / softcap), in the model's dtype; 0: as they are
  // bias     canonical name of a per-token bias of the logits, and its other names; empty: none
  LmHead(const LayerContext& context, const VocabularyWeight& weight, double init_std, Parameter* tied,
         double softcap = 0, const std::vector<std::string>& bias = {});

  struct Loss {
    LossTerm term;
    at::Tensor token_losses;  // (t) wide, detached; 0 where the weight is 0
  };
  // x             (t', h) as in nn/forward.h
  // labels        (t)  int64, below vocab where the weight is not 0
  // loss_weights  (t)  fp32
  // The objective is sum of weight * loss * scales.per_weight.
  Loss loss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& loss_weights,
            const ObjectiveScales& scales);

  // The logits of the chosen rows of the gathered (t, h), or of all if undefined: (rows, vocab), no padding, detached.
  at::Tensor logits(const at::Tensor& x, const at::Tensor& rows = {});

  Parameter& weight() { return *weight_; }

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override;

 private:
  friend struct LmLossFunction;

  int64_t rows_at_a_time(const at::Tensor& x);
  at::Tensor logits_of(const at::Tensor& x, const at::Tensor& weight) const;
  void add_bias(const LayerContext& context, const VocabularyWeight& weight, const std::vector<std::string>& names);

  Group* tp_;
  bool is_sequence_parallel_;
  std::shared_ptr<const MatmulRecipe> recipe_;  // plain, whatever the layers' recipe
  int64_t vocab_, local_start_, local_valid_;
  double softcap_;
  int64_t rows_at_a_time_ = 0;  // 0 before the first loss
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith
