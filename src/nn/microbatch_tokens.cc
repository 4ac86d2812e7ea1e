#include "nn/microbatch_tokens.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "comm/distribution.h"
#include "comm/sequence_shard.h"
#include "core/error.h"

namespace megalith {
namespace {

at::Tensor with_rows_around(const at::Tensor& x, int64_t before, int64_t after) {
  return before == 0 && after == 0 ? x : at::constant_pad_nd(x, {0, 0, before, after});
}

}  // namespace

MicrobatchTokens::MicrobatchTokens(const Groups& groups, const ForwardContext& forward, int64_t num_rows,
                                   int64_t num_tokens)
    : group_(forward.row_length > 0 ? groups.tp_cp : groups.tp),
      b_(forward.b),
      s_(forward.s),
      num_rows_(num_rows),
      first_(std::min(groups.tp->rank() * num_rows, num_tokens)),
      num_real_(std::min(num_rows, num_tokens - first_)),
      tp_size_(groups.tp->size()),
      cp_size_(forward.row_length > 0 ? groups.cp->size() : 1),
      cp_rank_(forward.row_length > 0 ? groups.cp->rank() : 0) {
  MEGALITH_CHECK(num_tokens == b_ * s_ && num_tokens <= num_rows * tp_size_,
                 "{} tokens in {} rows on each of {} ranks, for {} sequences of {}", num_tokens, num_rows, tp_size_, b_,
                 s_);
  MEGALITH_CHECK(forward.row_length == 0 || forward.row_length == s_ * cp_size_,
                 "a sequence of {} is no {} parts of {}", forward.row_length, cp_size_, s_);
}

at::Tensor MicrobatchTokens::padded(const at::Tensor& x) const { return with_rows_around(x, 0, num_rows_ - num_real_); }

at::Tensor MicrobatchTokens::gathered(const at::Tensor& x, std::string_view label) const {
  const at::NoGradGuard no_grad;
  const int64_t columns = x.size(1);
  // Ranks are in mesh order, tp fastest.
  const at::Tensor rows = group_->gathered(padded(x.detach()).contiguous(), label)
                              .view({cp_size_, num_rows_ * tp_size_, columns})
                              .narrow(1, 0, b_ * s_);
  if (cp_size_ == 1) return rows.select(0, 0);
  return zigzag_join(rows.reshape({cp_size_, b_, s_, columns})).view({num_tokens(), columns});
}

at::Tensor MicrobatchTokens::by_position(const at::Tensor& whole) const {
  return whole.reshape({b_, sequence_length(), whole.size(1)}).transpose(0, 1).reshape(whole.sizes());
}

at::Tensor MicrobatchTokens::by_sequence(const at::Tensor& whole) const {
  return whole.reshape({sequence_length(), b_, whole.size(1)}).transpose(0, 1).reshape(whole.sizes());
}

at::Tensor MicrobatchTokens::part(const at::Tensor& whole) const {
  const int64_t columns = whole.size(1);
  const at::Tensor own = zigzag_shard(whole.reshape({b_, sequence_length(), columns}), 1, cp_size_, cp_rank_)
                             .reshape({b_ * s_, columns});
  return as_cut(own.narrow(0, first_, num_real_), *group_);
}

void MicrobatchTokens::set_sequences(ops::RouterSums& sums) const {
  sums.num_sequences = b_;
  sums.sequence_length = s_;
  sums.first = first_;
}

}  // namespace megalith
