// The router's auxiliary objectives (formulas in expert_router.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "nn/expert_options.h"
#include "ops/router/router.h"

namespace megalith {

class Group;
class MicrobatchTokens;

// What global_aux_loss compares a microbatch with: the experts' tokens in the step's microbatches of all dp ranks.
class StepCounts {
 public:
  // counts (1, e) fp64 of this dp rank's next microbatch -> (1, e), the mean over the microbatches so far of the dp
  // ranks' sums. Collective over dp.
  at::Tensor mean_with(const at::Tensor& counts, Group& dp, std::string_view label);

 private:
  at::Tensor sum_;
  double num_microbatches_ = 0;
};

// A microbatch's part in it. mean: what mean_with() gave, so that recomputation does not count it twice.
struct StepBalance {
  StepCounts& counts;
  Group& dp;
  at::Tensor& mean;
};

struct RouterTerms {
  at::Tensor objective;             // 0-d, differentiable: this rank's share of the sum over ranks
  at::Tensor balance_loss, z_loss;  // 0-d, detached, over the microbatch, without coefficients
};

bool has_balance_loss(const RouterOptions& options);
bool has_router_terms(const RouterOptions& options);

ops::RouterSums router_sums(const RouterOptions& options, const MicrobatchTokens& tokens, bool has_terms,
                            bool has_loads);

// From sums over this rank's tokens. Disabled terms stay undefined. label: the collective's. step: null unless the
// balance is of the step.
RouterTerms compute_router_terms(const ops::RoutedTokens& routed, const RouterOptions& options,
                                 const MicrobatchTokens& tokens, std::string_view label, const StepBalance* step);

// Returns x; its backward also runs `objective`'s (0-d).
at::Tensor attach_objective(const at::Tensor& x, const at::Tensor& objective);

}  // namespace megalith
