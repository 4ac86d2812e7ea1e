// A run's update rules, and their demands on buckets.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/kernels.h"
#include "optim/optimizer_options.h"
#include "optim/update_rule.h"
#include "parallel/buckets.h"

namespace megalith {

// By precedence; the last takes all.
std::vector<std::unique_ptr<UpdateRule>> make_update_rules(const OptimizerOptions& options, Kernels kernels);

size_t rule_of(const std::vector<std::unique_ptr<UpdateRule>>& rules, const Parameter& parameter);

// Allowed cuts of a parameter's buckets in the distributed optimizer: for BucketRules::cut.
BucketCutFunction bucket_cut(const OptimizerOptions& options);

// Bytes of masters and state, before data parallelism divides them.
int64_t optimizer_bytes(const std::vector<Parameter*>& parameters, const OptimizerOptions& options);

}  // namespace megalith
