// A chunk's logits are in one buffer of the model's dtype, where the gradient replaces them.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/linear/linear.h"
#include "ops/linear/products.h"
#include "ops/linear_cross_entropy/kernel.h"

namespace megalith::ops {
namespace {

void check_per_row(const char* op, const Argument& argument, const at::Tensor& rows, at::ScalarType dtype) {
  check_dtype(op, argument, dtype);
  check_shape(op, argument, {rows.size(0)});
  check_devices(op, {{"rows", rows}, argument});
}

void check_valid_vocab(const char* op, const char* name, int64_t valid, int64_t columns) {
  if (valid >= 0 && valid <= columns) return;
  throw UserError(fmt::format("{}: {} is {}, but must be between 0 and the {} columns", op, name, valid, columns));
}

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

SoftmaxStatistics empty_statistics(const at::Tensor& logits, const at::Tensor& /*labels*/, int64_t /*vocab_start*/,
                                   int64_t /*local_valid_vocab*/) {
  const auto of_rows = [&] { return at::empty({logits.size(0)}, wide_options(logits)); };
  return {of_rows(), of_rows(), of_rows()};
}

using LaunchRows = void (*)(const LogitRows&, const at::Tensor& logits);

template <LaunchRows kLaunch>
SoftmaxStatistics softmax_statistics_by(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                        int64_t local_valid_vocab) {
  const auto [row_max, sum_exp, target_logit] = empty_statistics(logits, labels, vocab_start, local_valid_vocab);
  const at::Tensor dense_labels = labels.contiguous();
  LogitRows rows = rows_of(logits, dense_labels, vocab_start, local_valid_vocab);
  rows.row_max = row_max.data_ptr();
  rows.sum_exp = sum_exp.data_ptr();
  rows.target_logit = target_logit.data_ptr();
  kLaunch(rows, logits);
  return {row_max, sum_exp, target_logit};
}

template <LaunchRows kLaunch>
void cross_entropy_gradient_by(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                               const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab) {
  const at::Tensor dense_labels = labels.contiguous(), dense_lse = lse.contiguous();
  const at::Tensor dense_scale = row_scale.contiguous();
  LogitRows rows = rows_of(logits, dense_labels, vocab_start, local_valid_vocab);
  rows.lse = dense_lse.const_data_ptr();
  rows.row_scale = dense_scale.const_data_ptr();
  kLaunch(rows, logits);
}

std::tuple<at::Tensor, at::Tensor> empty_linear_cross_entropy(const at::Tensor& x, const at::Tensor& /*w*/,
                                                              const at::Tensor& /*labels*/,
                                                              const at::Tensor& /*row_scale*/, bool with_grad,
                                                              const at::Tensor& /*dw*/,
                                                              const LinearCrossEntropyOptions& /*options*/) {
  return {at::empty({x.size(0)}, wide_options(x)), with_grad ? at::empty(x.sizes(), x.options()) : at::Tensor()};
}

struct Products {
  void (*forward_out)(const at::Tensor& logits, const at::Tensor& x, const at::Tensor& w);
  void (*dgrad_out)(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w);
  void (*wgrad_)(const at::Tensor& dw, const at::Tensor& dlogits, const at::Tensor& x);
};

template <const Products& kProducts, LaunchRows kLaunch>
std::tuple<at::Tensor, at::Tensor> linear_cross_entropy_by(const at::Tensor& x, const at::Tensor& w,
                                                           const at::Tensor& labels, const at::Tensor& row_scale,
                                                           bool with_grad, const at::Tensor& dw,
                                                           const LinearCrossEntropyOptions& options) {
  const int64_t t = x.size(0), chunk_rows = options.chunk_rows;
  auto [losses, dx] = empty_linear_cross_entropy(x, w, labels, row_scale, with_grad, dw, options);
  const at::Tensor buffer = at::empty({std::min(t, chunk_rows), w.size(0)}, x.options());
  const at::Tensor dense_labels = labels.contiguous(), dense_scale = row_scale.contiguous();
  for (int64_t start = 0; start < t; start += chunk_rows) {
    const int64_t count = std::min(chunk_rows, t - start);
    const auto chunk = [&](const at::Tensor& whole) { return whole.narrow(0, start, count); };
    const at::Tensor logits = buffer.narrow(0, 0, count);
    kProducts.forward_out(logits, chunk(x), w);
    const at::Tensor chunk_labels = chunk(dense_labels), chunk_scale = chunk(dense_scale);
    const at::Tensor chunk_losses = chunk(losses);
    LogitRows rows = rows_of(logits, chunk_labels, 0, options.valid_vocab);
    rows.row_scale = chunk_scale.const_data_ptr();
    rows.losses = chunk_losses.data_ptr();
    rows.with_grad = with_grad;
    kLaunch(rows, logits);
    if (!with_grad) continue;
    kProducts.dgrad_out(chunk(dx), logits, w);
    if (dw.defined()) kProducts.wgrad_(dw, logits, chunk(x));
  }
  return {losses, dx};
}

// Allocates a chunk's logits too, for memory estimates.
std::tuple<at::Tensor, at::Tensor> measurable_linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                                   const at::Tensor& labels,
                                                                   const at::Tensor& row_scale, bool with_grad,
                                                                   const at::Tensor& dw,
                                                                   const LinearCrossEntropyOptions& options) {
  auto results = empty_linear_cross_entropy(x, w, labels, row_scale, with_grad, dw, options);
  at::empty({std::min(x.size(0), options.chunk_rows), w.size(0)}, x.options());
  return results;
}

constexpr Products kProductsOnCpu{
    .forward_out = [](const at::Tensor& logits, const at::Tensor& x,
                      const at::Tensor& w) { cpu::linear_forward_out(logits, x, w, /*bias=*/{}); },
    .dgrad_out = cpu::linear_dgrad_out,
    .wgrad_ = [](const at::Tensor& dw, const at::Tensor& dlogits,
                 const at::Tensor& x) { cpu::linear_wgrad_(dw, dlogits, x, /*accumulate=*/true); }};
void run_softmax_statistics(const LogitRows& a, const at::Tensor&) { MEGALITH_CPU_KERNEL(softmax_statistics)(a); }
void run_cross_entropy_gradient(const LogitRows& a, const at::Tensor&) {
  MEGALITH_CPU_KERNEL(cross_entropy_gradient)(a);
}
void run_cross_entropy(const LogitRows& a, const at::Tensor&) { MEGALITH_CPU_KERNEL(cross_entropy)(a); }

constexpr LinearCrossEntropyTable kLinearCrossEntropyCpu{
    .whole = linear_cross_entropy_by<kProductsOnCpu, run_cross_entropy>,
    .statistics = softmax_statistics_by<run_softmax_statistics>,
    .gradient_ = cross_entropy_gradient_by<run_cross_entropy_gradient>};

#ifdef MEGALITH_GPU_KERNELS
void product_out(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = result;
  at::mm_out(out, a, b);
}
constexpr Products kProductsOnGpu{
    .forward_out = [](const at::Tensor& logits, const at::Tensor& x,
                      const at::Tensor& w) { product_out(logits, x, w.t()); },
    .dgrad_out = product_out,
    .wgrad_ = [](const at::Tensor& dw, const at::Tensor& dlogits,
                 const at::Tensor& x) { linear_wgrad_(dw, dlogits, x, /*accumulate=*/true); }};

constexpr LinearCrossEntropyTable kLinearCrossEntropyGpu{
    .whole = linear_cross_entropy_by<kProductsOnGpu, gpu::on_stream_of<&gpu::cross_entropy, LogitRows>>,
    .statistics = softmax_statistics_by<gpu::on_stream_of<&gpu::softmax_statistics, LogitRows>>,
    .gradient_ = cross_entropy_gradient_by<gpu::on_stream_of<&gpu::cross_entropy_gradient, LogitRows>>};
#endif

constexpr LinearCrossEntropyTable kLinearCrossEntropyMeta{
    .whole = measurable_linear_cross_entropy,
    .statistics = empty_statistics,
    .gradient_ = [](const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t) {}};

}  // namespace

constexpr Operator<LinearCrossEntropyTable> kLinearCrossEntropy{.name = "linear_cross_entropy",
                                                                .reference = &kLinearCrossEntropyReference,
                                                                .cpu = &kLinearCrossEntropyCpu,
                                                                .meta = &kLinearCrossEntropyMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                                .gpu = &kLinearCrossEntropyGpu
#endif
};

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const at::Tensor& dw,
                                                        const LinearCrossEntropyOptions& options) {
  constexpr const char* kOp = "linear_cross_entropy";
  check_floating(kOp, {"x", x});
  check_rows(kOp, {"x", x});
  check_rows(kOp, {"w", w});
  check_dtype(kOp, {"w", w}, x.scalar_type());
  check_shape(kOp, {"w", w}, {w.size(0), x.size(1)});
  check_devices(kOp, {{"x", x}, {"w", w}});
  check_per_row(kOp, {"labels", labels}, x, at::kLong);
  check_per_row(kOp, {"row_scale", row_scale}, x, wide_dtype(x.scalar_type()));
  if (dw.defined()) {
    check_rows(kOp, {"dw", dw});
    check_dtype(kOp, {"dw", dw}, wide_dtype(x.scalar_type()));
    check_shape(kOp, {"dw", dw}, w.sizes());
    check_devices(kOp, {{"x", x}, {"dw", dw}});
  }
  LinearCrossEntropyOptions given = options;
  if (given.valid_vocab < 0) given.valid_vocab = w.size(0);
  check_valid_vocab(kOp, "valid_vocab", given.valid_vocab, w.size(0));
  if (options.chunk_rows < 1) {
    throw UserError(fmt::format("{}: chunk_rows is {}, but must be at least 1", kOp, options.chunk_rows));
  }
  return kLinearCrossEntropy.run(kOp, &LinearCrossEntropyTable::whole, options.kernels, x, w, labels, row_scale,
                                 with_grad, dw, given);
}

SoftmaxStatistics softmax_statistics(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                     int64_t local_valid_vocab, Kernels kernels) {
  constexpr const char* kOp = "softmax_statistics";
  check_floating(kOp, {"logits", logits});
  check_rows(kOp, {"logits", logits});
  check_per_row(kOp, {"labels", labels}, logits, at::kLong);
  check_valid_vocab(kOp, "local_valid_vocab", local_valid_vocab, logits.size(1));
  return kLinearCrossEntropy.run(kOp, &LinearCrossEntropyTable::statistics, kernels, logits, labels, vocab_start,
                                 local_valid_vocab);
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab,
                             Kernels kernels) {
  constexpr const char* kOp = "cross_entropy_gradient_";
  check_floating(kOp, {"logits", logits});
  check_rows(kOp, {"logits", logits});
  const at::ScalarType wide = wide_dtype(logits.scalar_type());
  check_per_row(kOp, {"lse", lse}, logits, wide);
  check_per_row(kOp, {"labels", labels}, logits, at::kLong);
  check_per_row(kOp, {"row_scale", row_scale}, logits, wide);
  check_valid_vocab(kOp, "local_valid_vocab", local_valid_vocab, logits.size(1));
  kLinearCrossEntropy.run(kOp, &LinearCrossEntropyTable::gradient_, kernels, logits, lse, labels, row_scale,
                          vocab_start, local_valid_vocab);
}

}  // namespace megalith::ops
