// Causal language modelling: the next token of a text, from those before it.
#pragma once

#include "tasks/text_task.h"

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

}  // namespace megalith
