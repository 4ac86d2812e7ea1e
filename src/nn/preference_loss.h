// Preferences among answers. r(answer) = sum of log p(label) - log p_reference(label) over its tokens.
//
//   DPO, of a chosen answer c and a rejected one j to a prompt:   loss = -log sigmoid(beta (r(c) - r(j)))
//   KTO, of an answer y that is good or bad:                      loss = w (1 - sigmoid(+-beta (r(y) - kl)))
//
// kl is the mean of r over mismatched answers in the whole global batch, at least 0, without gradient; a KTO pair is an
// answer and its prompt with another prompt's answer, of which that mean is taken beforehand. Rewards are beta r.
//
// The head (lm_head.h) computes gradients in forward, but their factor depends on the whole pair, so it runs twice: for
// token losses, then with d loss / d (-log p) as token weights. Sources: arXiv:2305.18290 (DPO), arXiv:2402.01306
// (KTO).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/forward.h"

namespace megalith {

class Group;

// KTO reads these too.
struct AnswerRatings {
  at::Tensor signs;  // (b, most_pairs()) fp32: 1 for a good answer, -1 for a bad one, 0 for none
  at::Tensor kl;     // (b) fp32, all alike
  double weight_of_good = 1, weight_of_bad = 1;
};

struct PreferenceInput {
  at::Tensor reference;  // (b, s) fp32: log-probabilities
  at::Tensor num_pairs;
  double beta = 0.1;
  std::optional<AnswerRatings> ratings = std::nullopt;  // KTO instead of DPO
};

// Room for the pairs of a row: their documents have tokens, and padding may be one more.
inline int64_t most_pairs(int64_t row_length) { return row_length / 2 + 1; }

// Means over pairs: loss, rewards of chosen and rejected answers, margin, share of pairs with a positive one.
std::vector<std::string> preference_terms();
// KTO: loss over all answers, rewards over the good and the bad ones, kl over all.
std::vector<std::string> rating_terms();

struct PreferenceLoss {
  at::Tensor token_weights;  // (b, s) wide
  std::vector<LossTerm> terms;
  at::Tensor row_sums, row_weights;  // (b) wide: the first term's, of each row
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
