// Causal language modelling: the next token of a text, from those before it.
#pragma once

#include "kinds/text/text_task.h"

namespace megalith {

class CausalLm : public TextTask {
 public:
  std::string_view name() const override { return "causal_lm"; }
  std::vector<UserError> check(const ModelConfig& model, const DataOptions& data) const override;
  void draw(Batch& /*rows*/) const override {}
  SampleKind sample_kind() const override { return SampleKind::kText; }

 protected:
  bool draws() const override { return false; }
};

// Instruction tuning: the next token of a conversation, where it is one of an answer. The rows are sft_rows.h's,
// what counts is sft_encoder.h's, and the sequences are sft_batches.h's.
class Sft : public CausalLm {
 public:
  std::string_view name() const override { return "sft"; }
  DataSets open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const override;
};

}  // namespace megalith
