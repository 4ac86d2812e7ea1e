// In ATen's operators.
#include <ATen/ATen.h>

#include "ops/linear/linear.h"

namespace megalith::ops {
namespace reference {
namespace {

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, x, w.t()) : at::mm(x, w.t());
}

at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w) { return at::mm(dy, w); }

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate) {
  // A bf16 product would be rounded before it is summed.
  const at::Tensor product = at::mm(dy.to(dw.scalar_type()).t(), x.to(dw.scalar_type()));
  if (accumulate)
    dw.add_(product);
  else
    dw.copy_(product);
}

void bias_grad_(const at::Tensor& db, const at::Tensor& dy) { db.add_(dy.sum(0, false, db.scalar_type())); }

struct LocalIds {
  at::Tensor rows;     // (t) local rows; 0 for foreign ids
  at::Tensor foreign;  // (t, 1) bool: in another slice
};
LocalIds localise(const at::Tensor& ids, int64_t start, int64_t num_rows) {
  const at::Tensor rows = ids - start;
  const at::Tensor foreign = (rows < 0).logical_or_(rows >= num_rows);
  return {rows.masked_fill(foreign, 0), foreign.unsqueeze(1)};
}

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start) {
  const LocalIds local = localise(ids, start, table.size(0));
  return table.index_select(0, local.rows).masked_fill_(local.foreign, 0);
}

void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start) {
  const LocalIds local = localise(ids, start, dw.size(0));
  const at::Tensor wide = dy.to(dw.scalar_type()).masked_fill(local.foreign, 0);
  // In token order: index_add_ runs in one thread on the CPU, index_put_ sorts stably on a GPU.
  if (dw.is_cpu())
    dw.index_add_(0, local.rows, wide);
  else
    dw.index_put_({local.rows}, wide, /*accumulate=*/true);
}

}  // namespace
}  // namespace reference

constexpr LinearTable kLinearReference{.forward = reference::linear_forward,
                                       .dgrad = reference::linear_dgrad,
                                       .wgrad_ = reference::linear_wgrad_,
                                       .bias_grad_ = reference::bias_grad_,
                                       .embedding_forward = reference::embedding_forward,
                                       .embedding_wgrad_ = reference::embedding_wgrad_};

}  // namespace megalith::ops
