// Stochastic gradient descent with momentum as an update rule; takes every parameter.
//
//   g = grad_scale * grad + weight_decay * w;   m = momentum * m + g;   w -= lr * m
//
// As torch.optim.SGD and Megatron-LM's --optimizer sgd: unlike AdamW's, weight decay enters gradient and momentum. No
// state without momentum.
#pragma once

#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(const OptimizerOptions& options) : momentum_(options.sgd_momentum) {}

  std::string_view name() const override { return "SGD"; }
  bool takes(const Parameter& /*parameter*/) const override { return true; }
  std::vector<StateSpec> state(const Parameter& parameter) const override;
  void update(std::span<const UpdateSlot> slots, const UpdateStep& step) override;

 private:
  double momentum_;
};

}  // namespace megalith
