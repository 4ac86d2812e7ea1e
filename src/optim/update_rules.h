// Which rules a run has.
#pragma once

#include <memory>
#include <vector>

#include "ops/kernels.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"

namespace megalith {

// In the order in which they are asked whether they take a parameter; the last takes all.
std::vector<std::unique_ptr<UpdateRule>> make_update_rules(const OptimizerOptions& options, Kernels kernels);

// The index of the first rule that takes the parameter.
size_t rule_of(const std::vector<std::unique_ptr<UpdateRule>>& rules, const Parameter& parameter);

}  // namespace megalith
