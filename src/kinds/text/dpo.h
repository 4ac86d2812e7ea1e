// Direct preference optimization: of two answers to a question the preferred one becomes more likely, and the other
// less, compared with a reference model (nn/preference_loss.h). The rows are pairs of sft_rows.h's; both answers
// of a pair lie in one sequence, each with its question before it.
#pragma once

#include "kinds/text/causal_lm.h"

namespace megalith {

class Dpo final : public Sft {
 public:
  explicit Dpo(double beta) : beta_(beta) {}

  std::string_view name() const override { return "dpo"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  // preference_terms(), divided by pairs.
  std::vector<std::string> loss_names() const override;
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  HeadOutput evaluated_output() const override { return HeadOutput::kLoss; }
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;

 private:
  double beta_;
};

// What the reference computes: the losses of the tokens that count, of the same rows.
class DpoReferenceTask final : public Sft {};

}  // namespace megalith
