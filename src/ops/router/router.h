// A router's decision from its logits: each token's experts, their weights, and the balance's sums.
//
//   scores   = logits | softmax(logits) | sigmoid(logits), (+ bias), minus infinity outside the best groups
//   experts  = the k largest scores, best first; ties go to lower numbers. NaN is the largest.
//   weights  = softmax over the chosen logits | softmax(logits) | sigmoid(logits) (/ their sum + 1e-20), times factor
//   loads    = tokens that chose each expert
//   counts   = tokens with each expert among their k largest shares (or the chosen)
//   score_sums = sum over tokens of the shares;  z_sum = sum over tokens of logsumexp(logits)^2
//
// t tokens, e experts, k per token, q sequences (or 1)
// logits  (t, e)  fp32 | fp64
// bias    (e)     of that dtype, or undefined
// throws  also for fewer than k experts to choose from
// The GPU kernel supports 512 experts and 32 per token; beyond, the reference runs. Gradients flow to logits, through
// weights, score_sums and z_sum; not through the choice.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"
#include "ops/router/form.h"

namespace megalith::ops {

// In logits' dtype unless stated; undefined if not requested.
struct RoutedTokens {
  at::Tensor experts;             // (t, k) int64
  at::Tensor weights;             // (t, k)
  at::Tensor loads;               // (e) int64
  at::Tensor counts, score_sums;  // (q, e)
  at::Tensor z_sum;               // (1)
};

// experts (t, k) int64: a choice made elsewhere, distinct per token; undefined: made here.
RoutedTokens route_tokens(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& experts,
                          const RouterForm& form, const RouterSums& sums, Kernels kernels = Kernels::kFused);

// dlogits (t, e) from route_tokens()'s experts and the gradients of weights (t, k), score_sums (q, e) and z_sum (1), if
// defined.
struct RoutedGradients {
  at::Tensor weights, score_sums, z_sum;
};
at::Tensor route_tokens_backward(const at::Tensor& logits, const at::Tensor& experts, const RoutedGradients& gradients,
                                 const RouterForm& form, const RouterSums& sums, Kernels kernels = Kernels::kFused);

struct RouterTable {
  RoutedTokens (*forward)(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& experts,
                          const RouterForm& form, const RouterSums& sums);
  at::Tensor (*backward)(const at::Tensor& logits, const at::Tensor& experts, const RoutedGradients& gradients,
                         const RouterForm& form, const RouterSums& sums);
};
extern const RouterTable kRouterReference;
extern const Operator<RouterTable> kRouter;

// The reference, given a search for the k largest in each row of scores (n, m), where ties go to the first.
RoutedTokens compose_routing(const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& experts,
                             const RouterForm& form, const RouterSums& sums,
                             at::Tensor (*find_largest)(const at::Tensor& scores, int64_t k));

}  // namespace megalith::ops
