// Maps are as in token_permutation.h.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// out (tokens, columns) = sum over j of weights y. Moves out and every row of y with a pair.
struct CombineTokens {
  Dtype dtype;
  int64_t tokens, k, columns;
  const void* y;
  int64_t y_stride;
  const int64_t* slots;
  const void* weights;  // (tokens, k) wide, or null
  void* out;
};

// Moves dout, every row of y with a pair, and dy.
struct CombineTokensBackward {
  Dtype dtype;
  int64_t tokens, k, columns, rows;
  const void* dout;
  int64_t dout_stride;
  const void* y;
  int64_t y_stride;
  const int64_t *source, *slots;
  const void* weights;
  void* dy;        // (rows, columns)
  void* dweights;  // (tokens, k) wide
};

namespace cpu {
MEGALITH_DECLARE_CPU_KERNEL(combine_tokens, (const CombineTokens& a));
MEGALITH_DECLARE_CPU_KERNEL(combine_tokens_backward, (const CombineTokensBackward& a));
}  // namespace cpu

namespace gpu {

// Pairs are counted in such blocks.
inline constexpr int64_t kSortedPairs = 256;

// Bytes per pair: 8 for its expert and 1 for keep, read; 24 for pairs, source and slots, written; and 16 per padding
// row.
struct SortByExpert {
  int64_t num_pairs, num_experts, k;
  int64_t rows_per_expert;  // of pairs and source, with padding; -1: num_pairs for all experts
  const int64_t* experts;
  const bool* keep;  // null: all
  int64_t *counts, *offsets, *pairs, *source, *slots;
  int32_t* scratch;  // (num_experts, blocks of kSortedPairs pairs)
};
// Drops pairs of nonexistent experts.
void sort_by_expert(const SortByExpert& a, void* stream);

// y (rows, row_bytes) = rows of x, of any dtype. Moves y, and as much of x.
struct PermuteTokens {
  int64_t rows, row_bytes;
  int64_t element_bytes;  // 2, 4 or 8; x and y begin at a multiple of it
  const void* x;
  int64_t x_stride_bytes;
  const int64_t* source;
  void* y;
};
void permute_tokens(const PermuteTokens& a, void* stream);

void combine_tokens(const CombineTokens& a, void* stream);
void combine_tokens_backward(const CombineTokensBackward& a, void* stream);

}  // namespace gpu

}  // namespace megalith::ops
