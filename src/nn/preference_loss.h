// Direct preference optimization: a loss of pairs of answers to one question, of which one was preferred.
//
//   c = sum of log p(label) - log p_reference(label) over the tokens of the chosen answer; r: of the rejected one
//   loss = -log sigmoid(beta (c - r))        rewards: beta c, beta r
//
// The head computes the gradient of a token's loss in its forward pass (nn/lm_head.h), times a factor that it must
// know. Here it follows from all tokens of the pair. So the head runs twice: for the losses of the tokens, and then
// with d loss / d (-log p) as the tokens' weights. Only the head does: its rows are not kept.
//
// Source: Rafailov et al. 2023, arXiv:2305.18290.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nn/forward.h"

namespace megalith {

class Group;

struct PreferenceInput {
  at::Tensor reference;  // (b, s) fp32: log-probabilities of the labels by the reference; read where a label counts
  at::Tensor num_pairs;  // (b) int64: of each row
  double beta = 0.1;
};

// Terms in their order: the loss, the rewards of chosen and rejected answers, their difference, and how often the
// chosen one has the larger reward. Each is a mean over pairs.
std::vector<std::string> preference_terms();

struct PreferenceLoss {
  at::Tensor token_weights;     // (b, s) wide: the factors of the tokens' losses in the objective
  std::vector<LossTerm> terms;  // without objectives
};

// token_losses  (b, s) wide: -log p(label), 0 where the label does not count
// loss_weights  (b, s): 1 where it does
// documents     (b, s) int32: of pair k of a row 2 k and 2 k + 1; others are padding
// row_length    tokens of a row over all cp ranks, whose parts of the answers are summed
// The first rank of cp has the terms; the others have zeros.
PreferenceLoss preference_loss(const at::Tensor& token_losses, const at::Tensor& loss_weights,
                               const at::Tensor& documents, int64_t row_length, const PreferenceInput& input,
                               Group& cp);

}  // namespace megalith
