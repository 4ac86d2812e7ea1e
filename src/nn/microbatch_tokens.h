// The tokens of a microbatch across the ranks that share it, for decisions and averages over all of them.
//
// b sequences of S tokens are split over cp by the zig-zag (comm/sequence_shard.h), s = S / cp each, and a cp rank's b
// * s tokens over tp, rows [rank * t, (rank + 1) * t), with padding from b * s on. Without ForwardContext::row_length
// every cp rank has whole sequences (S = s).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "comm/groups.h"
#include "nn/forward.h"
#include "ops/router/form.h"

namespace megalith {

class MicrobatchTokens {
 public:
  // num_rows t, with padding; num_tokens b * s. InternalError unless they fit forward and the groups.
  MicrobatchTokens(const Groups& groups, const ForwardContext& forward, int64_t num_rows, int64_t num_tokens);

  Group& group() const { return *group_; }
  int64_t first() const { return first_; }                   // of this rank's rows, among the b * s
  int64_t num_real() const { return num_real_; }             // n: this rank's rows that are tokens; they come first
  int64_t sequence_length() const { return s_ * cp_size_; }
  int64_t num_tokens() const { return b_ * sequence_length(); }
  // True on all ranks if any has padding.
  bool has_padding() const { return num_rows_ * tp_size_ != b_ * s_; }

  // (n, c) -> (t, c), zero-padded; x itself without padding. Differentiable.
  at::Tensor padded(const at::Tensor& x) const;
  // (n, c) of every rank -> (b S, c) on every rank, in sequence order. Not recorded by autograd.
  at::Tensor gathered(const at::Tensor& x, std::string_view label) const;
  // (b S, c) in sequence order -> by position, then by sequence.
  at::Tensor by_position(const at::Tensor& whole) const;
  // The inverse of by_position().
  at::Tensor by_sequence(const at::Tensor& whole) const;
  // The inverse of gathered(): (b S, c) -> this rank's (n, c).
  at::Tensor part(const at::Tensor& whole) const;
  // Makes sums be per sequence, over this rank's tokens.
  void set_sequences(ops::RouterSums& sums) const;

 private:
  Groups::Pointer group_;
  int64_t b_, s_, num_rows_, first_, num_real_;
  int tp_size_, cp_size_, cp_rank_;
};

}  // namespace megalith
