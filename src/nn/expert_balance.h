// The router's auxiliary objectives (formulas in expert_router.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "nn/expert_router.h"
#include "ops/router/router.h"

namespace megalith {

class MicrobatchTokens;

struct RouterTerms {
  at::Tensor objective;             // 0-d, differentiable: this rank's share of the sum over ranks
  at::Tensor balance_loss, z_loss;  // 0-d, detached, over the microbatch, without coefficients
};

bool has_balance_loss(const RouterOptions& options);
bool has_router_terms(const RouterOptions& options);

ops::RouterSums router_sums(const RouterOptions& options, const MicrobatchTokens& tokens, bool has_terms,
                            bool has_loads);

// From sums over this rank's tokens. Disabled terms stay undefined. label: the collective's.
RouterTerms compute_router_terms(const ops::RoutedTokens& routed, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label);

}  // namespace megalith
