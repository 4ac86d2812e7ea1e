// In ATen's operators.
#include <ATen/ATen.h>

#include <limits>

#include "ops/merge_attention/merge_attention.h"

namespace megalith::ops {
namespace reference {
namespace {

using at::Tensor;

void merge_attention_(const Tensor& out, const Tensor& lse, const Tensor& more_out, const Tensor& more_lse) {
  const Tensor both = at::logaddexp(lse, more_lse);
  // Without keys: -inf - 0 keeps zero weights, -inf + inf gives NaN.
  const Tensor base = both.masked_fill(both == -std::numeric_limits<double>::infinity(), 0);
  const auto weight = [&](const Tensor& one) { return (one - base).exp_().transpose(1, 2).unsqueeze(-1); };
  out.mul_(weight(lse)).addcmul_(more_out.to(out.scalar_type()), weight(more_lse));
  lse.copy_(both);
}

}  // namespace
}  // namespace reference

constexpr MergeAttentionTable kMergeAttentionReference{.merge_ = reference::merge_attention_};

}  // namespace megalith::ops
