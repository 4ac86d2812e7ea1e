// What the options make of a router: the form of its decision (ops/router), and which choices fit a capacity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/expert_router.h"
#include "ops/router/form.h"

namespace megalith {

// How scores become choices and weights.
ops::RouterForm router_form(const RouterOptions& options);

// Rows that an expert takes at most: ceil(num_tokens k / e factor); 0 without a capacity.
int64_t expert_capacity(int64_t num_tokens, const RouterOptions& options);

// (n, k) bool: for each expert the `capacity` pairs of the highest weights (n, k), of equal ones the earlier rows';
// without weights those of the earliest rows. It takes the tokens of a whole microbatch.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts, int64_t capacity);

}  // namespace megalith
