// The objectives that keep experts evenly used and logits small; their formulas are in nn/expert_router.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "nn/expert_router.h"
#include "ops/router/router.h"

namespace megalith {

class MicrobatchTokens;

struct RouterTerms {
  at::Tensor objective;  // 0-d, differentiable: this rank's share, of which the sum over the ranks is the terms'
  at::Tensor balance_loss, z_loss;  // 0-d, detached: of the whole microbatch, divided by their coefficients
};

// Whether the options ask for aux_loss or seq_aux_loss, and for any term.
bool has_balance_loss(const RouterOptions& options);
bool has_router_terms(const RouterOptions& options);

// What the terms need of the tokens, and the loads where they are wanted. Without terms nothing else is summed.
ops::RouterSums router_sums(const RouterOptions& options, const MicrobatchTokens& tokens, bool has_terms,
                            bool has_loads);

// From the sums of this rank's tokens. What the options leave out stays undefined.
// label: in the trace, of the one collective over the ranks that share the microbatch.
RouterTerms compute_router_terms(const ops::RoutedTokens& routed, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label);

}  // namespace megalith
