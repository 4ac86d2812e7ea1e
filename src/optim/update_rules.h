// Which rules a run has, and what they ask of the buckets.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/kernels.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"
#include "parallel/buckets.h"

namespace megalith {

// In the order in which they are asked whether they take a parameter; the last takes all.
std::vector<std::unique_ptr<UpdateRule>> make_update_rules(const OptimizerOptions& options, Kernels kernels);

// The index of the first rule that takes the parameter.
size_t rule_of(const std::vector<std::unique_ptr<UpdateRule>>& rules, const Parameter& parameter);

// Where the buckets of the distributed optimizer may be cut, given a parameter: for BucketRules::cut.
BucketCutFunction bucket_cut(const OptimizerOptions& options);

// What masters and state of these parameters take, in bytes, before ranks divide them.
int64_t optimizer_bytes(const std::vector<Parameter*>& parameters, const OptimizerOptions& options);

}  // namespace megalith
