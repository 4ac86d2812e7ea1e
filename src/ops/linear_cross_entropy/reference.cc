// In ATen's operators.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "ops/arguments.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace megalith::ops {
namespace reference {
namespace {

at::ScalarType wide_type_of(const at::Tensor& x) { return wide_dtype(x.scalar_type()); }

// Label's column in this slice (else 0); whether it is here: (c, 1) both.
std::pair<at::Tensor, at::Tensor> label_columns(const at::Tensor& labels, int64_t vocab_start, int64_t num_columns) {
  const at::Tensor columns = (labels - vocab_start).unsqueeze(1);
  const at::Tensor is_local = (columns >= 0).logical_and_(columns < num_columns);
  return {columns.masked_fill(is_local.logical_not(), 0), is_local};
}

SoftmaxStatistics softmax_statistics(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                     int64_t local_valid_vocab) {
  const auto options = logits.options().dtype(wide_type_of(logits));
  SoftmaxStatistics result;
  if (local_valid_vocab == 0) {
    result.row_max = at::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), options);
    result.sum_exp = at::zeros({logits.size(0)}, options);
    result.target_logit = at::zeros({logits.size(0)}, options);
    return result;
  }
  const at::Tensor wide = logits.narrow(1, 0, local_valid_vocab).to(options.dtype());
  result.row_max = wide.amax(1);
  result.sum_exp = (wide - result.row_max.unsqueeze(1)).exp_().sum(1);
  const auto [columns, is_local] = label_columns(labels, vocab_start, local_valid_vocab);
  result.target_logit = wide.gather(1, columns).masked_fill_(is_local.logical_not(), 0).squeeze(1);
  return result;
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab) {
  logits.narrow(1, local_valid_vocab, logits.size(1) - local_valid_vocab).zero_();
  if (local_valid_vocab == 0) return;
  const at::Tensor valid = logits.narrow(1, 0, local_valid_vocab);
  at::Tensor gradient = (valid.to(wide_type_of(logits)) - lse.unsqueeze(1)).exp_();
  const auto [columns, is_local] = label_columns(labels, vocab_start, local_valid_vocab);
  gradient.scatter_add_(1, columns, is_local.to(gradient.scalar_type()).neg_());
  gradient.mul_(row_scale.unsqueeze(1));
  // Even if its logits are not finite.
  valid.copy_(gradient.masked_fill_((row_scale == 0).unsqueeze(1), 0));
}

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const at::Tensor& dw,
                                                        const LinearCrossEntropyOptions& options) {
  const int64_t chunk_rows = options.chunk_rows, valid_vocab = options.valid_vocab;
  const int64_t t = x.size(0);
  const at::Tensor losses = at::empty({t}, x.options().dtype(wide_type_of(x)));
  const at::Tensor dx = with_grad ? at::empty_like(x) : at::Tensor();
  for (int64_t start = 0; start < t; start += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, t - start);
    const auto chunk = [&](const at::Tensor& whole) { return whole.narrow(0, start, rows); };
    const at::Tensor logits = kLinearReference.forward(chunk(x), w, {});
    const SoftmaxStatistics statistics = softmax_statistics(logits, chunk(labels), 0, valid_vocab);
    const at::Tensor lse = statistics.sum_exp.log().add_(statistics.row_max);
    chunk(losses).copy_((lse - statistics.target_logit).masked_fill_(chunk(row_scale) == 0, 0));
    if (!with_grad) continue;
    cross_entropy_gradient_(logits, lse, chunk(labels), chunk(row_scale), 0, valid_vocab);
    chunk(dx).copy_(kLinearReference.dgrad(logits, w));
    if (dw.defined()) kLinearReference.wgrad_(dw, logits, chunk(x), /*accumulate=*/true);
  }
  return {losses, dx};
}

}  // namespace
}  // namespace reference

constexpr LinearCrossEntropyTable kLinearCrossEntropyReference{.whole = reference::linear_cross_entropy,
                                                               .statistics = reference::softmax_statistics,
                                                               .gradient_ = reference::cross_entropy_gradient_};

}  // namespace megalith::ops
