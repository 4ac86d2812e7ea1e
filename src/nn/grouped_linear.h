// This rank's experts' linears as one grouped product.
//
//   y[i] = W[j] x[i]    for the rows i of expert j, offsets[j] <= i < offsets[j + 1]
//
// Experts cut over etp get all their rows: cut rows of W yield columns of y, cut columns a part of y to be summed
// later. Only recipes communicate.
#pragma once

#include <memory>
#include <string>

#include "nn/matmul_recipe.h"
#include "nn/module.h"

namespace megalith {

class Group;

struct GroupedLinearSite {
  std::string name;     // without ".weight"
  Placement placement;  // (num_local * rows, in) or (num_local, rows, in), with axes
  int64_t num_experts = 1, first_expert = 0, num_local = 1;
  double rows_per_token = 1;  // on this rank, if balanced; for costs
  int cut_dim = 0;            // of an expert's matrix, over etp
  // Ranks with other columns of the input, and of the output's gradient; null: none.
  Group *input_ranks = nullptr, *gradient_ranks = nullptr;
  Init init = {};
  bool is_adapter = false;
  bool is_trainable = true;
};

class GroupedLinear : public Module {
 public:
  GroupedLinear(const LayerContext& context, const GroupedLinearSite& site);

  // x (n, in_local), sorted by expert -> (n, rows_local). offsets (num_local + 1) int64.
  at::Tensor forward(const Activation& x, const at::Tensor& offsets);

  Parameter& weight() { return *weight_; }
  const Parameter& weight() const { return *weight_; }

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override {
    return weight_->is_trainable() ? 0 : own_forward_flops(shape);
  }

 private:
  friend struct GroupedLinearFunction;

  std::shared_ptr<const MatmulRecipe> recipe_;
  DeferredGradients* deferred_;
  Group *weight_ranks_, *input_ranks_, *gradient_ranks_;
  int64_t num_local_;
  double rows_per_token_;
  Parameter* weight_;
  int64_t layer_ = -1;
};

}  // namespace megalith
