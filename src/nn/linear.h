// Linear layers with a tensor-parallel role.
//
//   replicated  y = x W^T + b                        the same on every rank
//   column      rank i holds rows i of W and b, and gives those columns of y; dx is summed over tp
//   row         rank i holds columns i of W and takes those columns of x; y is summed over tp, then b is added
//
// Under sequence parallelism, column gathers its input (again in backward), and row scatters its sum. A fused local
// weight (q|k|v, gate|up) has rows [part 0's slice | part 1's slice | …]. Sources: arXiv:1909.08053; sequence
// parallelism: arXiv:2205.05198.
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

// A canonical linear (rows, in), or rows of one: GPT-2's c_attn (q | k | v) begins parts at rows 0, h and 2h of its 3h.
struct LinearPart {
  std::string name;
  int64_t rows = 0;  // over all ranks
  int64_t first_row = 0;
  int64_t canonical_rows = 0;  // 0: `rows`
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
  bool is_trainable = true;
  // Widths of a row layer's concatenated inputs (attention's output and an MLP's up), each cut over tp. Empty: one.
  std::vector<int64_t> input_parts = {};
};

class Linear : public Module {
 public:
  // name: parameters add `.weight` and `.bias`. in_features: over all ranks. InternalError unless tp divides every
  // part's rows (column) or in_features (row).
  Linear(const LayerContext& context, std::string name, int64_t in_features, const std::vector<LinearPart>& parts,
         const LinearOptions& options);
  Linear(const LayerContext& context, const std::string& name, int64_t in_features, int64_t out_features,
         const LinearOptions& options)
      : Linear(context, name, in_features, {LinearPart{name, out_features}}, options) {}
  ~Linear() override;

  // x (t, in_local) -> (t', out_local). row_ids: for adapter dropout; undefined: none.
  at::Tensor forward(const Activation& x, const at::Tensor& row_ids = {});
  // Recomputes forward's result.
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
  // Ranks with other parts of the input, the weight and the output's gradient; null: none.
  Group *input_ranks_, *weight_ranks_, *gradient_ranks_;
  std::shared_ptr<const MatmulRecipe> recipe_;
  int64_t layer_ = -1;
  DeferredGradients* deferred_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  std::unique_ptr<LowRankAdapter> adapter_;
};

}  // namespace megalith
