// Direct preference optimization over pairs of answers to a prompt.
//
//   c = sum of log p(label) - log p_reference(label) over the tokens of the chosen answer; r: of the rejected one
//   loss = -log sigmoid(beta (c - r))        rewards: beta c, beta r
//
// The head (lm_head.h) computes gradients in forward, but their factor depends on the whole pair, so it runs twice: for
// token losses, then with d loss / d (-log p) as token weights. Source: arXiv:2305.18290 (DPO).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/forward.h"

namespace megalith {

class Group;

struct PreferenceInput {
  at::Tensor reference;  // (b, s) fp32: log-probabilities
  at::Tensor num_pairs;
  double beta = 0.1;
};

// Means over pairs: loss, rewards of chosen and rejected answers, margin, share of pairs with a positive one.
std::vector<std::string> preference_terms();

struct PreferenceLoss {
  at::Tensor token_weights;  // (b, s) wide
  std::vector<LossTerm> terms;
};

// token_losses  (b, s) wide: -log p(label), 0 where the label does not count
// loss_weights  (b, s): 1 where it does
// documents     (b, s) int32: 2 k and 2 k + 1 for a row's pair k; others are padding
// row_length    over all cp ranks, which sum answers
// Only the first cp rank has terms; others have zeros.
PreferenceLoss preference_loss(const at::Tensor& token_losses, const at::Tensor& loss_weights,
                               const at::Tensor& documents, int64_t row_length, const PreferenceInput& input,
                               Group& cp);

}  // namespace megalith
