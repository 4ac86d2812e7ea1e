// AdamW as an update rule: one pass of ops/adamw.h over all slots. It takes every parameter, so it stands last in a
// list.
#pragma once

#include "ops/kernels.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

class AdamwRule : public UpdateRule {
 public:
  AdamwRule(const OptimizerOptions& options, Kernels kernels) : options_(options), kernels_(kernels) {}

  std::string_view name() const override { return "AdamW"; }
  bool takes(const Parameter& /*parameter*/) const override { return true; }
  std::vector<StateSpec> state(at::ScalarType grad_dtype) const override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  OptimizerOptions options_;
  Kernels kernels_;
};

}  // namespace megalith
