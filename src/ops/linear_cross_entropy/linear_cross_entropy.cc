// Interface of the language-model head's loss: checks the arguments, then calls the dispatcher or the reference.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/linear_cross_entropy/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def(
      "softmax_statistics(Tensor logits, Tensor labels, int vocab_start, int local_valid_vocab) -> "
      "(Tensor row_max, Tensor sum_exp, Tensor target_logit)");
  m.def(
      "cross_entropy_gradient_(Tensor(a!) logits, Tensor lse, Tensor labels, Tensor row_scale, int vocab_start, "
      "int local_valid_vocab) -> ()");
  // Ends in an underscore because it adds to dw.
  m.def(
      "linear_cross_entropy_(Tensor x, Tensor w, Tensor labels, Tensor row_scale, bool with_grad, Tensor(a!)? dw, "
      "int valid_vocab, int chunk_rows) -> (Tensor losses, Tensor dx)");
}

namespace megalith::ops {
namespace {

void check_per_row(const char* op, const Argument& argument, const at::Tensor& rows, at::ScalarType dtype) {
  check_dtype(op, argument, dtype);
  check_shape(op, argument, {rows.size(0)});
  check_devices(op, {{"rows", rows}, argument});
}

void check_row_vector(const char* op, const Argument& argument) {
  check_floating(op, argument);
  check_rank(op, argument, 2);
  const at::Tensor& x = argument.tensor;
  if (x.stride(1) == 1 || x.size(1) <= 1 || x.numel() == 0) return;
  throw UserError(fmt::format("{}: rows of {} have stride {}, but must be contiguous", op, argument.name, x.stride(1)),
                  "call contiguous() first");
}

void check_valid_vocab(const char* op, const char* name, int64_t valid, int64_t columns) {
  if (valid >= 0 && valid <= columns) return;
  throw UserError(fmt::format("{}: {} is {}, but must be between 0 and the {} columns", op, name, valid, columns));
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& labels, const at::Tensor& row_scale,
                                                        bool with_grad, const at::Tensor& dw,
                                                        const LinearCrossEntropyOptions& options) {
  constexpr const char* kOp = "linear_cross_entropy";
  check_row_vector(kOp, {"x", x});
  check_row_vector(kOp, {"w", w});
  check_dtype(kOp, {"w", w}, x.scalar_type());
  check_shape(kOp, {"w", w}, {w.size(0), x.size(1)});
  check_devices(kOp, {{"x", x}, {"w", w}});
  check_per_row(kOp, {"labels", labels}, x, at::kLong);
  check_per_row(kOp, {"row_scale", row_scale}, x, wide_dtype(x.scalar_type()));
  if (dw.defined()) {
    check_row_vector(kOp, {"dw", dw});
    check_dtype(kOp, {"dw", dw}, wide_dtype(x.scalar_type()));
    check_shape(kOp, {"dw", dw}, w.sizes());
    check_devices(kOp, {{"x", x}, {"dw", dw}});
  }
  const int64_t valid_vocab = options.valid_vocab < 0 ? w.size(0) : options.valid_vocab;
  check_valid_vocab(kOp, "valid_vocab", valid_vocab, w.size(0));
  if (options.chunk_rows < 1) {
    throw UserError(fmt::format("{}: chunk_rows is {}, but must be at least 1", kOp, options.chunk_rows));
  }
  if (options.kernels == Kernels::kReference) {
    return reference::linear_cross_entropy(x, w, labels, row_scale, with_grad, dw, valid_vocab, options.chunk_rows);
  }
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool,
      const std::optional<at::Tensor>&, int64_t, int64_t)>("megalith::linear_cross_entropy_");
  return op.call(x, w, labels, row_scale, with_grad, dw.defined() ? std::optional(dw) : std::nullopt, valid_vocab,
                 options.chunk_rows);
}

SoftmaxStatistics softmax_statistics(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_start,
                                     int64_t local_valid_vocab, Kernels kernels) {
  constexpr const char* kOp = "softmax_statistics";
  check_row_vector(kOp, {"logits", logits});
  check_per_row(kOp, {"labels", labels}, logits, at::kLong);
  check_valid_vocab(kOp, "local_valid_vocab", local_valid_vocab, logits.size(1));
  if (kernels == Kernels::kReference) {
    return reference::softmax_statistics(logits, labels, vocab_start, local_valid_vocab);
  }
  static const auto op =
      find_op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t, int64_t)>(
          "megalith::softmax_statistics");
  auto [row_max, sum_exp, target_logit] = op.call(logits, labels, vocab_start, local_valid_vocab);
  return {row_max, sum_exp, target_logit};
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                             const at::Tensor& row_scale, int64_t vocab_start, int64_t local_valid_vocab,
                             Kernels kernels) {
  constexpr const char* kOp = "cross_entropy_gradient_";
  check_row_vector(kOp, {"logits", logits});
  const at::ScalarType wide = wide_dtype(logits.scalar_type());
  check_per_row(kOp, {"lse", lse}, logits, wide);
  check_per_row(kOp, {"labels", labels}, logits, at::kLong);
  check_per_row(kOp, {"row_scale", row_scale}, logits, wide);
  check_valid_vocab(kOp, "local_valid_vocab", local_valid_vocab, logits.size(1));
  if (kernels == Kernels::kReference) {
    return reference::cross_entropy_gradient_(logits, lse, labels, row_scale, vocab_start, local_valid_vocab);
  }
  static const auto op =
      find_op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t)>(
          "megalith::cross_entropy_gradient_");
  op.call(logits, lse, labels, row_scale, vocab_start, local_valid_vocab);
}

}  // namespace megalith::ops
