// Lion as an update rule; takes every parameter.
//
//   u = sign(beta1 * m + (1 - beta1) * g);   m = beta2 * m + (1 - beta2) * g
//   w = (1 - lr * weight_decay) * w - lr * u
//
// Every element moves by lr: use an lr 3 to 10 times below AdamW's, and weight_decay as much above.
// Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
#pragma once

#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

class LionRule : public UpdateRule {
 public:
  explicit LionRule(const LionOptions& options) : beta1_(options.lion_beta1), beta2_(options.lion_beta2) {}

  std::string_view name() const override { return "Lion"; }
  bool takes(const Parameter& /*parameter*/) const override { return true; }
  std::vector<StateSpec> state(const Parameter& parameter) const override {
    return {{"exp_avg", parameter.wide_dtype()}};
  }
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  double beta1_, beta2_;
};

}  // namespace megalith
