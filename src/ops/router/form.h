// The router's parameters, without torch's headers, for GPU sources.
#pragma once

#include <cstdint>

namespace megalith::ops {

// The scores: logits, their softmax over all experts, or each one's sigmoid.
enum class RouterChoice { kLogits, kSoftmax, kSigmoid };
// The chosen experts' weights: softmax over them, or over all; each one's sigmoid, plain or divided by their sum +
// 1e-20.
enum class RouterWeights { kChosenSoftmax, kSoftmax, kSigmoid, kSigmoidShare };
// The balance's shares, one per token in sum: softmax, or sigmoids divided by their sum + 1e-20.
enum class RouterShares { kSoftmax, kSigmoid };

inline constexpr double kRouterEpsilon = 1e-20;

struct RouterForm {
  int64_t num_chosen = 1;  // k
  RouterChoice choice = RouterChoice::kLogits;
  RouterWeights weights = RouterWeights::kChosenSoftmax;
  double factor = 1;  // multiplies the weights
  // Equal groups of experts, of which a token may use the open_groups best; 0: none. A group scores the sum of its
  // group_scores largest scores.
  int64_t num_groups = 0, open_groups = 0, group_scores = 1;
};

// The objectives' sums over tokens.
struct RouterSums {
  bool has_loads = false, has_balance = false, has_z = false;
  RouterShares shares = RouterShares::kSoftmax;
  // The balance counts the choices; else the k largest shares, ignoring bias and groups.
  bool counts_choices = true;
  // For balance per sequence: token i is in sequence (first + i) / sequence_length of num_sequences; 0: all tokens
  // together.
  int64_t num_sequences = 0, sequence_length = 0, first = 0;

  int64_t balance_rows() const { return num_sequences > 0 ? num_sequences : 1; }
};

}  // namespace megalith::ops
