// Shared by tasks on texts of one sequence: token data sets, one loss over weighted labels, and an input of tokens,
// positions and documents.
#pragma once

#include "train/task.h"

namespace megalith {

class TextTask : public Task {
 public:
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
  // "lm loss", as Megatron-LM logs it for GPT and BERT.
  std::vector<std::string> loss_names() const override;
  // The labels' weights.
  std::vector<double> count_weights(const Batch& part) const override;
  ModelInput make_input(const Batch& part, at::Device device, std::span<const Unit> units) const override;
  // The losses of the tokens.
  HeadOutput evaluated_output() const override { return HeadOutput::kTokenLosses; }
  std::vector<std::string> evaluated_names() const override { return loss_names(); }
  at::Tensor evaluate(const Batch& part, const ModelOutput& output) const override;

 protected:
  // draw() is not a no-op.
  virtual bool draws() const { return true; }
};

}  // namespace megalith
