// The objectives that balance experts and keep logits small; formulas in nn/expert_router.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "nn/expert_router.h"
#include "ops/router/router.h"

namespace megalith {

class MicrobatchTokens;

struct RouterTerms {
  at::Tensor objective;             // 0-d, differentiable: this rank's share; the ranks' sum is the total
  at::Tensor balance_loss, z_loss;  // 0-d, detached: of the whole microbatch, divided by their coefficients
};

bool has_balance_loss(const RouterOptions& options);
bool has_router_terms(const RouterOptions& options);

ops::RouterSums router_sums(const RouterOptions& options, const MicrobatchTokens& tokens, bool has_terms,
                            bool has_loads);

// From the sums of this rank's tokens. Disabled terms stay undefined. label: of the one collective over the
// microbatch's ranks.
RouterTerms compute_router_terms(const ops::RoutedTokens& routed, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label);

}  // namespace megalith
