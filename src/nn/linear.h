// Linear layers with a tensor-parallel role.
//
//   replicated  y = x W^T + b                        the same on every rank
//   column      rank i holds rows i of W and b, and gives those columns of y; dx is summed over tp
//   row         rank i holds columns i of W and takes those columns of x; y is summed over tp, then b is added
//
// Under sequence parallelism, activations outside a column…row pair are this rank's t / tp tokens: column gathers them
// before the product (and again in backward, instead of keeping them), row scatters the sum. A recipe
// (nn/matmul_recipe.h) multiplies; weight products may be deferred. A fused layer's local weight (q|k|v, gate|up) has
// rows [part 0's slice | part 1's slice | …].
// Source: Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/adapter_options.h"
#include "nn/matmul_recipe.h"
#include "nn/module.h"

namespace megalith {

class Group;
class LowRankAdapter;

enum class LinearRole { kReplicated, kColumn, kRow };

// One canonical linear: "model.layers.0.self_attn.q_proj" with `.weight` (rows, in) and `.bias` (rows). Parts may share
// one: GPT-2's c_attn (q | k | v) has rows 0, h and 2h on of its 3h.
struct LinearPart {
  std::string name;
  int64_t rows = 0;            // of the whole, not of this rank
  int64_t first_row = 0;
  int64_t canonical_rows = 0;  // of the canonical linear; 0: rows
};

struct LinearOptions {
  LinearRole role = LinearRole::kReplicated;
  bool has_bias = false;
  bool is_transposed = false;  // canonical weights are (in, rows), as in GPT-2
  double init_std = 0.02;      // biases start at zero
  ParameterRole weight_role = ParameterRole::kMatrix;
  LinearKind kind = LinearKind::kOther;
  std::optional<Init> weight_init = std::nullopt;  // overrides init_std
  bool is_adapter = false;
  // For a row layer with concatenated inputs (attention's output and an MLP's up): their total widths, sliced over tp
  // one by one. Empty: one input.
  std::vector<int64_t> input_parts = {};
};

class Linear : public Module {
 public:
  // name         of the parameters, which get `.weight` and `.bias`
  // in_features  of the whole
  // tp divides the rows of every part (column) or in_features (row); InternalError otherwise.
  Linear(const LayerContext& context, std::string name, int64_t in_features, const std::vector<LinearPart>& parts,
         const LinearOptions& options);
  Linear(const LayerContext& context, const std::string& name, int64_t in_features, int64_t out_features,
         const LinearOptions& options)
      : Linear(context, name, in_features, {LinearPart{name, out_features}}, options) {}
  ~Linear() override;

  // x (t, in_local) -> (t', out_local), differentiable; t' differs from t only under sequence parallelism.
  // row_ids  for adapter dropout (dropout_rows()); undefined: no dropout
  at::Tensor forward(const Activation& x, const at::Tensor& row_ids = {});
  // Recomputes forward's result for this input.
  Kept again(Kept x, const at::Tensor& row_ids = {}) const;

  Parameter& weight() { return *weight_; }
  const Parameter& weight() const { return *weight_; }
  Parameter* bias() { return bias_; }
  AdaptableLayer adaptable() const;

 protected:
  double own_forward_flops(const CostShape& shape) const override;
  double own_frozen_flops(const CostShape& shape) const override {
    return weight_->is_trainable() ? 0 : own_forward_flops(shape);
  }

 private:
  friend struct LinearFunction;
  at::Tensor adapted(const at::Tensor& y, const Activation& x, const at::Tensor& row_ids) const;
  bool is_rescaled() const;

  LinearRole role_;
  LinearKind kind_;
  Group* tp_;
  bool is_sequence_parallel_;
  // Ranks with the other parts of the input, of the weight and of the output's gradient; null: all is here.
  Group *input_ranks_, *weight_ranks_, *gradient_ranks_;
  std::shared_ptr<const MatmulRecipe> recipe_;
  int64_t layer_ = -1;
  DeferredGradients* deferred_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  std::unique_ptr<LowRankAdapter> adapter_;
};

}  // namespace megalith
