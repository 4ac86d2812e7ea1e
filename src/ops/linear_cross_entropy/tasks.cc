// Registers cross entropy for the CPU and for the meta device.
//
// The logits of a chunk live in one buffer of the call, in the dtype of the model (bf16 logits are rounded once, by the
// product); softmax, loss and gradient are computed in fp32 and the gradient is rounded once, in place of the logits.
#include <ATen/ATen.h>

#include <algorithm>

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/linear/products.h"
#include "ops/linear/wgrad.h"
#include "ops/linear_cross_entropy/kernel.h"

namespace megalith::ops::cpu {
namespace {

at::TensorOptions wide_options(const at::Tensor& x) { return x.options().dtype(wide_dtype(x.scalar_type())); }

LogitRows rows_of(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start, int64_t valid) {
  return {.dtype = to_dtype(logits.scalar_type()),
          .rows = logits.size(0),
          .columns = logits.size(1),
          .valid = valid,
          .stride = logits.stride(0),
          .logits = logits.data_ptr(),
          .labels = labels.const_data_ptr<int64_t>(),
          .vocab_start = vocab_start};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> softmax_statistics(const at::Tensor& logits, const at::Tensor& labels,
                                                                  int64_t vocab_start, int64_t local_valid_vocab) {
  const at::Tensor row_max = at::empty({logits.size(0)}, wide_options(logits));
  const at::Tensor sum_exp = at::empty_like(row_max), target_logit = at::empty_like(row_max);
  const at::Tensor dense_labels = labels.contiguous();
  LogitRows rows = rows_of(logits, dense_labels, vocab_start, local_valid_vocab);
  rows.row_max = row_max.data_ptr();
  rows.sum_exp = sum_exp.data_ptr();
  rows.target_logit = target_logit.data_ptr();
  MEGALITH_CPU_KERNEL(softmax_statistics)(rows);
  return {row_max, sum_exp, target_logit};
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab) {
  const at::Tensor dense_labels = labels.contiguous(), dense_lse = lse.contiguous();
  const at::Tensor dense_scale = row_scale.contiguous();
  LogitRows rows = rows_of(logits, dense_labels, vocab_start, local_valid_vocab);
  rows.lse = dense_lse.const_data_ptr();
  rows.row_scale = dense_scale.const_data_ptr();
  MEGALITH_CPU_KERNEL(cross_entropy_gradient)(rows);
}

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const std::optional<at::Tensor>& dw,
                                                        int64_t valid_vocab, int64_t chunk_rows) {
  const int64_t t = x.size(0);
  const at::Tensor losses = at::empty({t}, wide_options(x));
  const at::Tensor dx = with_grad ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const at::Tensor buffer = at::empty({std::min(t, chunk_rows), w.size(0)}, x.options());
  const at::Tensor dense_labels = labels.contiguous(), dense_scale = row_scale.contiguous();
  for (int64_t start = 0; start < t; start += chunk_rows) {
    const int64_t count = std::min(chunk_rows, t - start);
    const auto chunk = [&](const at::Tensor& whole) { return whole.narrow(0, start, count); };
    const at::Tensor logits = buffer.narrow(0, 0, count);
    linear_forward_out(logits, chunk(x), w, /*bias=*/std::nullopt);
    const at::Tensor chunk_labels = chunk(dense_labels), chunk_scale = chunk(dense_scale);
    const at::Tensor chunk_losses = chunk(losses);
    LogitRows rows = rows_of(logits, chunk_labels, 0, valid_vocab);
    rows.row_scale = chunk_scale.const_data_ptr();
    rows.losses = chunk_losses.data_ptr();
    rows.with_grad = with_grad;
    MEGALITH_CPU_KERNEL(cross_entropy)(rows);
    if (!with_grad) continue;
    linear_dgrad_out(chunk(dx), logits, w);
    if (dw.has_value()) linear_wgrad_(*dw, logits, chunk(x), /*accumulate=*/true);
  }
  return {losses, dx};
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) {
  namespace cpu = megalith::ops::cpu;
  m.impl("softmax_statistics", TORCH_FN(cpu::softmax_statistics));
  m.impl("cross_entropy_gradient_", TORCH_FN(cpu::cross_entropy_gradient_));
  m.impl("linear_cross_entropy_", TORCH_FN(cpu::linear_cross_entropy));
}

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  using at::Tensor;
  namespace cpu = megalith::ops::cpu;
  m.impl("softmax_statistics", [](const Tensor& logits, const Tensor&, int64_t, int64_t) {
    const auto rows = [&] { return at::empty({logits.size(0)}, cpu::wide_options(logits)); };
    return std::tuple(rows(), rows(), rows());
  });
  m.impl("cross_entropy_gradient_",
         [](const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t) {});
  m.impl("linear_cross_entropy_", [](const Tensor& x, const Tensor&, const Tensor&, const Tensor&, bool with_grad,
                                     const std::optional<Tensor>&, int64_t, int64_t) {
    return std::tuple(at::empty({x.size(0)}, cpu::wide_options(x)), with_grad ? at::empty_like(x) : Tensor());
  });
}
