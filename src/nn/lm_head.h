// Language-model head: logits, or the loss without materialising them (loss_rows.h); the vocabulary may be split over
// tp.
//
// The loss computes gradients in forward (ops/linear_cross_entropy): the weight's accumulates in its buffer, the
// activations' is returned in backward, whose incoming gradient must be one.
//
// With an adapter, logits = x W' + low B' for low = scale * A dropout(x), whose columns follow x's (widened()).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/embedding.h"
#include "nn/forward.h"
#include "nn/matmul_recipe.h"
#include "nn/module.h"

namespace megalith {

struct HeadAdapter;

class LmHead : public Module {
 public:
  // tied     the embedding's Parameter; null: own weight
  // softcap  > 0: logits are softcap * tanh(logits / softcap), in the model's dtype
  // bias     canonical name of a per-token bias, and aliases; empty: none
  LmHead(const LayerContext& context, const VocabularyWeight& weight, double init_std, Parameter* tied,
         double softcap = 0, const std::vector<std::string>& bias = {});
  ~LmHead() override;

  // x (t', h) with the adapter's columns, as the following functions take it. row_ids (b s) int64: as LowRankAdapter's.
  at::Tensor widened(const at::Tensor& x, const at::Tensor& row_ids) const;

  struct Loss {
    LossTerm term;
    at::Tensor token_losses;  // (t) wide, detached; 0 where the weight is 0
  };
  // x             (t', h), widened
  // labels        (t)  int64, below vocab where the weight is not 0
  // loss_weights  (t)  fp32
  // The objective is sum of weight * loss * scales.per_weight.
  Loss loss(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& loss_weights,
            const ObjectiveScales& scales);

  // (rows, vocab), no padding, detached: `rows` (undefined: all) of the gathered (t, h).
  at::Tensor logits(const at::Tensor& x, const at::Tensor& rows = {});

  Parameter& weight() { return *weight_; }
  AdaptableLayer adaptable() const;

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override;

 private:
  friend struct LmLossFunction;

  std::vector<Parameter*> own_parameters() const;
  static double flops_of(const Parameter& parameter, const CostShape& shape);
  int64_t rows_at_a_time(const at::Tensor& x);
  // Covers the vocabulary's first `num_rows`.
  at::Tensor logits_of(const at::Tensor& x, int64_t num_rows) const;
  void add_adapter(const LayerContext& context, const VocabularyWeight& weight);
  void add_bias(const LayerContext& context, const VocabularyWeight& weight, const std::vector<std::string>& names);

  Group* tp_;
  bool is_sequence_parallel_;
  std::shared_ptr<const MatmulRecipe> recipe_;  // always plain
  int64_t vocab_, local_start_, local_valid_;
  double softcap_;
  int64_t rows_at_a_time_ = 0;  // 0: before the first loss
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  bool is_tied_;
  std::unique_ptr<HeadAdapter> adapter_;
};

}  // namespace megalith
