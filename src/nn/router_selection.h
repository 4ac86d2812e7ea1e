// From options to the router's decision (ops/router) and capacity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/expert_router.h"
#include "ops/router/form.h"

namespace megalith {

ops::RouterForm router_form(const RouterOptions& options);

// ceil(num_tokens k / e factor) rows per expert; 0: no capacity.
int64_t expert_capacity(int64_t num_tokens, const RouterOptions& options);

// (n, k) bool: each expert's `capacity` pairs of highest weight (n, k), ties to earlier rows; without weights its
// earliest rows.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts, int64_t capacity);

}  // namespace megalith
