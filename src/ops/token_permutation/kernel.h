// What the kernels of the tokens' permutation get, on any device; maps as in token_permutation.h. Free of torch's
// headers.
#pragma once

#include <cstdint>

#include "ops/cpu/capability.h"
#include "ops/dtype.h"

namespace megalith::ops {

// out (tokens, columns) = sum over j of weights y. Bytes that must move: every row of y that has a pair, read, and out,
// written.
struct CombineTokens {
  Dtype dtype;
  int64_t tokens, k, columns;
  const void* y;
  int64_t y_stride;
  const int64_t* slots;
  const void* weights;  // (tokens, k) wide, or null
  void* out;
};

// Bytes that must move: dout and every row of y that has a pair, read, and dy, written.
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

// Pointers on the device, and the stream as its native handle.
namespace gpu {

// Pairs are counted in blocks of so many.
inline constexpr int64_t kSortedPairs = 256;

// Bytes that must move for each pair: 8 for its expert and 1 for keep, read; 24 for pairs, source and slots, written;
// and 16 for each row of padding.
struct SortByExpert {
  int64_t num_pairs, num_experts, k;
  int64_t rows_per_expert;  // of pairs and source, with padding; -1: num_pairs of them for all experts
  const int64_t* experts;
  const bool* keep;  // null: all
  int64_t *counts, *offsets, *pairs, *source, *slots;
  int32_t* scratch;  // (num_experts, blocks of kSortedPairs pairs), written before it is read
};
// An expert that does not exist is taken as a dropped pair.
void sort_by_expert(const SortByExpert& a, void* stream);

// y (rows, row_bytes) = rows of x, of any dtype. Bytes that must move: y, and as much of x.
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
