// Forms and sums as in form.h. Moves the logits once, each token's experts and weights, and in backward dlogits.
#pragma once

#include <cstdint>

#include "ops/dtype.h"
#include "ops/router/form.h"

namespace megalith::ops::gpu {

inline constexpr int64_t kMostRouterExperts = 512, kMostRouterChoices = 32;
// Most blocks for all sequences together, or one per sequence. A block of 32-lane waves takes 8 tokens at once.
inline constexpr int64_t kRouterBlocks = 256, kTokensOfRouterBlock = 8;

inline int64_t router_blocks_of_sequence(const RouterSums& sums, int64_t tokens) {
  const bool is_whole = sums.num_sequences == 0 || tokens < sums.sequence_length;
  const int64_t wanted = ((is_whole ? tokens : sums.sequence_length) + kTokensOfRouterBlock - 1) / kTokensOfRouterBlock;
  const int64_t most = kRouterBlocks / sums.balance_rows(), blocks = wanted < most ? wanted : most;
  return blocks < 1 ? 1 : blocks;
}
// A block's results: experts' shares, counts and loads, and the squares for z.
inline int64_t router_columns(int64_t experts) { return 3 * experts + 1; }

struct RouteTokens {
  Dtype dtype;  // kFloat32 | kFloat64: logits, bias and results other than integers
  int64_t tokens, num_experts;
  RouterForm form;
  RouterSums sums;
  const void *logits, *bias;  // bias: null if none
  const int64_t* given;       // null: chosen here
  int64_t* experts;           // not written if given
  void* weights;
  int64_t* loads;  // like the following, null if not requested
  void *counts, *score_sums, *z_sum;
  void* parts;  // (blocks of all sequences, router_columns); null without sums
};
void route_tokens(const RouteTokens& a, void* stream);

struct RouteTokensBackward {
  Dtype dtype;
  int64_t tokens, num_experts;
  RouterForm form;
  RouterSums sums;
  const void* logits;
  const int64_t* experts;
  const void *dweights, *dscore_sums, *dz_sum;  // null: no such gradient
  void* dlogits;
};
void route_tokens_backward(const RouteTokensBackward& a, void* stream);

}  // namespace megalith::ops::gpu
