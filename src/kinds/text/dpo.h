// Direct preference optimization: makes the preferred of two answers more likely and the other less, relative to a
// reference model (nn/preference_loss.h). Rows are the pairs of sft_rows.h; both answers of a pair are in one sequence,
// each preceded by its question.
#pragma once

#include "kinds/text/causal_lm.h"

namespace megalith {

class Dpo final : public Sft {
 public:
  explicit Dpo(double beta) : beta_(beta) {}

  std::string_view name() const override { return "dpo"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // preference_terms(), divided by the number of pairs.
  std::vector<std::string> loss_names() const override;
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  HeadOutput evaluated_output() const override { return HeadOutput::kLoss; }
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;

 private:
  double beta_;
};

// Task of the reference model: token losses of the same rows.
class DpoReferenceTask final : public Sft {};

}  // namespace megalith
