// Causal language modelling: predicts the next token of a text from those before it.
#pragma once

#include "kinds/text/text_task.h"

namespace megalith {

class CausalLm : public TextTask {
 public:
  // set_names  of the training sets whose losses are reported (sft_mix.h, data_set_names); empty: none
  explicit CausalLm(std::vector<std::string> set_names = {}) : set_names_(std::move(set_names)) {}

  std::string_view name() const override { return "causal_lm"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  void draw(Batch& /*rows*/) const override {}
  SampleKind sample_kind() const override { return SampleKind::kText; }
  std::vector<std::string> measured_names() const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;

 protected:
  bool draws() const override { return false; }

 private:
  std::vector<std::string> set_names_;
};

// Instruction tuning: predicts the tokens of a conversation's answers. See sft_rows.h for rows, sft_encoder.h for the
// tokens that count, sft_batches.h for sequences.
class Sft : public CausalLm {
 public:
  using CausalLm::CausalLm;

  std::string_view name() const override { return "sft"; }
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
};

}  // namespace megalith
