// What a router makes of its logits: scores, the chosen experts, their weights, and which choices fit a capacity.
//
// n tokens, e experts, k of them a token; logits (n, e) wide. The options' meaning is in nn/expert_router.h. Each row
// is decided by itself but for sinkhorn() and within_capacity(), which take the tokens of a whole microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/expert_router.h"

namespace megalith {

// (n, e): the softmax, or the sigmoid divided by its row's sum + 1e-20. Differentiable.
at::Tensor normalised_scores(const at::Tensor& logits, RouterScore score);

// (n, k) int64, the best first: the k largest of scores + bias, only of the best groups. bias (e) may be undefined.
at::Tensor select_experts(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options);

// (n, k): how much each of the experts (n, k) counts. Differentiable in logits.
at::Tensor weigh_experts(const at::Tensor& logits, const at::Tensor& experts, const RouterOptions& options);

// (n, e) fp64: exp(logits) with rows and columns scaled until every token has the same share of the experts and every
// expert nearly the same of the tokens; its k largest of a row are a balanced choice. No gradient.
// Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py, sinkhorn.
at::Tensor sinkhorn(const at::Tensor& logits);

// Rows that an expert takes at most: ceil(num_tokens k / e factor); 0 without a capacity.
int64_t expert_capacity(int64_t num_tokens, const RouterOptions& options);

// (n, k) bool: for each expert the `capacity` pairs of the highest weights (n, k), of equal ones the earlier rows';
// without weights those of the earliest rows.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, int64_t num_experts, int64_t capacity);

}  // namespace megalith
