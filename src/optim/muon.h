// Muon as an update rule: updates are orthogonalised momentum (newton_schulz.h).
//
//   m = momentum * m + (1 - momentum) * g;   d = m, or with Nesterov momentum * m + (1 - momentum) * g
//   w = (1 - lr * weight_decay) * w - lr * scale(r, c) * orthogonal(d)
//
// As torch.optim.Muon and Megatron-LM's --optimizer muon, on whole canonical matrices (each of q, k, v, gate, up, every
// expert) with outputs as rows (matrix_exchange.h), so steps do not depend on layout. AdamW takes the rest, including
// embeddings and heads.
//
// State: "momentum_buffer", in the gradient's dtype. Source: Jordan et al. 2024,
// https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, arXiv:2502.16982 (spectral scale, weight decay).
#pragma once

#include <memory>
#include <vector>

#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

// Factor of a (rows, columns) matrix's update, without the extra factor.
double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns);

class MuonRule : public UpdateRule {
 public:
  explicit MuonRule(const MuonOptions& options);

  std::string_view name() const override { return "Muon"; }
  Granularity granularity() const override { return Granularity::kMatrices; }
  bool takes(const Parameter& parameter) const override { return has_matrices(parameter); }
  std::vector<StateSpec> state(const Parameter& parameter) const override {
    return {{"momentum_buffer", parameter.wide_dtype()}};
  }
  void prepare(const DataParallel& data, const Groups& groups) override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  MuonOptions options_;
  std::vector<NewtonSchulzStep> steps_;
  std::unique_ptr<MatrixExchange> exchange_;
};

}  // namespace megalith
