// See update_rules.h.
#include "optim/update_rules.h"

#include "core/error.h"
#include "optim/adamw.h"
#include "optim/sgd.h"

namespace megalith {

std::vector<std::unique_ptr<UpdateRule>> make_update_rules(const OptimizerOptions& options, Kernels kernels) {
  std::vector<std::unique_ptr<UpdateRule>> rules;
  switch (options.optimizer) {
    case OptimizerKind::kAdam:
      break;
    case OptimizerKind::kSgd:
      rules.push_back(std::make_unique<SgdRule>(options));
      break;
  }
  rules.push_back(std::make_unique<AdamwRule>(options, kernels));
  return rules;
}

size_t rule_of(const std::vector<std::unique_ptr<UpdateRule>>& rules, const Parameter& parameter) {
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i]->takes(parameter)) return i;
  }
  MEGALITH_CHECK(false, "no update rule takes {}", parameter.name());
}

}  // namespace megalith
