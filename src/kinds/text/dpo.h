// Preference optimization relative to a reference model (nn/preference_loss.h). DPO makes the preferred of two answers
// more likely and the other less; KTO good answers more and bad ones less. Rows are the pairs and the rated answers of
// sft_rows.h; both sequences of a pair are in one row, each preceded by its question.
#pragma once

#include "kinds/task_setup.h"
#include "kinds/text/causal_lm.h"

namespace megalith {

class Dpo : public Sft {
 public:
  explicit Dpo(double beta, std::vector<std::string> set_names = {}) : Sft(std::move(set_names)), beta_(beta) {}

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

class Kto final : public Dpo {
 public:
  Kto(double beta, KtoWeights weights, std::vector<std::string> set_names = {})
      : Dpo(beta, std::move(set_names)), weights_(weights) {}

  std::string_view name() const override { return "kto"; }
  // rating_terms(), divided by the number of answers, of good and of bad ones.
  std::vector<std::string> loss_names() const override;
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;

 private:
  KtoWeights weights_;
};

// (b) float32, alike in all rows of a global batch: the KL estimate, added before a step.
inline constexpr std::string_view kKlEstimate = "kl";

// Token losses of the same rows, by the reference model or, for the KL estimate, by the trained one.
class DpoReferenceTask final : public Sft {};

}  // namespace megalith
