// The tokens of one microbatch over the ranks that share it, for what a router decides or averages over all of them.
//
// b sequences of S tokens lie over cp ranks by the zig-zag (comm/sequence_shard.h), s = S / cp on each, and the b * s
// tokens of a cp rank over its tp ranks, t rows on each: rows [rank * t, (rank + 1) * t). Rows from b * s on are
// padding. Without ForwardContext::row_length every cp rank has the whole sequences (S = s), and shares only with tp.
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
  // num_rows t, padding included; num_tokens b * s. InternalError unless they fit forward and the groups.
  MicrobatchTokens(const Groups& groups, const ForwardContext& forward, int64_t num_rows, int64_t num_tokens);

  Group& group() const { return *group_; }                   // the ranks that share the microbatch
  int64_t first() const { return first_; }                   // of this rank's rows, among the b * s
  int64_t num_real() const { return num_real_; }             // n: this rank's rows that are tokens, its first ones
  int64_t sequence_length() const { return s_ * cp_size_; }  // S
  int64_t num_tokens() const { return b_ * sequence_length(); }
  // Whether any of the ranks has padding: the same answer on all.
  bool has_padding() const { return num_rows_ * tp_size_ != b_ * s_; }

  // (n, c) -> (t, c), with zeros (false) behind; x itself when this rank has no padding. Differentiable.
  at::Tensor padded(const at::Tensor& x) const;
  // (n, c) of every rank -> (b S, c), in the order of the sequences, on every rank. Not recorded by autograd.
  at::Tensor gathered(const at::Tensor& x, std::string_view label) const;
  // (b S, c) in the order of the sequences -> position by position, the sequences' tokens of a position in a row.
  at::Tensor by_position(const at::Tensor& whole) const;
  // And back.
  at::Tensor by_sequence(const at::Tensor& whole) const;
  // The inverse of gathered(): (b S, c) -> this rank's (n, c).
  at::Tensor part(const at::Tensor& whole) const;
  // Sums are to be those of each sequence's tokens on this rank.
  void set_sequences(ops::RouterSums& sums) const;

 private:
  Groups::Pointer group_;
  int64_t b_, s_, num_rows_, first_, num_real_;
  int tp_size_, cp_size_, cp_rank_;
};

}  // namespace megalith
