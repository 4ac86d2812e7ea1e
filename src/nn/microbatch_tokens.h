// A microbatch's tokens across the ranks that share it.
//
// b sequences of S tokens are split over cp by the zig-zag (comm/sequence_shard.h), s = S / cp each, and a cp rank's b
// s over tp: rows [rank * t, (rank + 1) * t), then padding. Without ForwardContext::row_length, S = s.
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
  // num_rows t, with padding; num_tokens b * s. InternalError unless they fit.
  MicrobatchTokens(const Groups& groups, const ForwardContext& forward, int64_t num_rows, int64_t num_tokens);

  Group& group() const { return *group_; }
  int64_t first() const { return first_; }        // this rank's of the b * s
  int64_t num_real() const { return num_real_; }  // n: tokens, before padding
  int64_t sequence_length() const { return s_ * cp_size_; }
  int64_t num_tokens() const { return b_ * sequence_length(); }
  // On any rank.
  bool has_padding() const { return num_rows_ * tp_size_ != b_ * s_; }

  // (n, c) -> (t, c), zero-padded.
  at::Tensor padded(const at::Tensor& x) const;
  // (n, c) of every rank -> (b S, c) in sequence order, on every rank. No autograd.
  at::Tensor gathered(const at::Tensor& x, std::string_view label) const;
  // (b S, c): by sequence -> by position.
  at::Tensor by_position(const at::Tensor& whole) const;
  at::Tensor by_sequence(const at::Tensor& whole) const;
  // Inverse of gathered(): this rank's (n, c).
  at::Tensor part(const at::Tensor& whole) const;
  // Sums per sequence of this rank's tokens.
  void set_sequences(ops::RouterSums& sums) const;

 private:
  Groups::Pointer group_;
  int64_t b_, s_, num_rows_, first_, num_real_;
  int tp_size_, cp_size_, cp_rank_;
};

}  // namespace megalith
