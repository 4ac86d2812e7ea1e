// AdamW as an update rule: one pass of ops/adamw over all slots. Takes every parameter, so it comes last.
#pragma once

#include <unordered_map>
#include <vector>

#include "ops/kernels.h"
#include "optim/drawn_runs.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

class AdamwRule : public UpdateRule {
 public:
  static constexpr size_t kExpAvg = 0, kExpAvgSq = 1;

  AdamwRule(const OptimizerOptions& options, Kernels kernels) : options_(options), kernels_(kernels) {}

  std::string_view name() const override { return "AdamW"; }
  bool takes(const Parameter& /*parameter*/) const override { return true; }
  bool takes_narrow_masters() const override { return true; }
  std::vector<StateSpec> state(const Parameter& parameter) const override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  OptimizerOptions options_;
  Kernels kernels_;
  std::unordered_map<const OwnedPart*, std::vector<PartRun>> runs_;  // slots with stochastic rounding
};

}  // namespace megalith
