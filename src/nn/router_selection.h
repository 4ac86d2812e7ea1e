// From options to the router's decision (ops/router) and capacity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/expert_router.h"
#include "ops/router/form.h"

namespace megalith {

ops::RouterForm router_form(const RouterOptions& options);

// Most rows per expert: ceil(num_tokens k / e factor); 0 without a capacity.
int64_t expert_capacity(int64_t num_tokens, const RouterOptions& options);

// (n, k) bool: for each expert the `capacity` pairs with the highest weights (n, k), ties to earlier rows; without
// weights the earliest rows. For the tokens of a whole microbatch.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts, int64_t capacity);

}  // namespace megalith
