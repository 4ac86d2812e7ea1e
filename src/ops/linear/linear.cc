// Interface of the linear layer's products and of the embedding: checks the arguments, then calls the dispatcher or the
// reference.
#include "ops/linear/linear.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/linear/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("linear(Tensor x, Tensor w, Tensor? bias=None) -> Tensor");
  m.def("linear_forward(Tensor x, Tensor w, Tensor? bias=None) -> Tensor");
  m.def("linear_dgrad(Tensor dy, Tensor w) -> Tensor");
  m.def("linear_wgrad_(Tensor(a!) dw, Tensor dy, Tensor x, bool accumulate=True) -> ()");
  m.def("bias_grad_(Tensor(a!) db, Tensor dy) -> ()");
  m.def("embedding_forward(Tensor ids, Tensor table, int start=0) -> Tensor");
  m.def("embedding_wgrad_(Tensor(a!) dw, Tensor ids, Tensor dy, int start=0) -> ()");
}

namespace megalith::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
OptionalTensor optional(const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

// (rows, columns) with contiguous rows; they may be apart.
void check_matrix(const char* op, const Argument& argument) {
  check_rank(op, argument, 2);
  const at::Tensor& x = argument.tensor;
  if (x.stride(1) == 1 || x.size(1) <= 1 || x.numel() == 0) return;
  throw UserError(fmt::format("{}: rows of {} have stride {}, but must be contiguous", op, argument.name, x.stride(1)),
                  "call contiguous() first");
}

void check_forward(const char* op, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  check_floating(op, {"x", x});
  check_matrix(op, {"x", x});
  check_matrix(op, {"w", w});
  check_dtype(op, {"w", w}, x.scalar_type());
  check_shape(op, {"w", w}, {w.size(0), x.size(1)});
  check_devices(op, {{"x", x}, {"w", w}});
  if (!bias.defined()) return;
  check_dtype(op, {"bias", bias}, x.scalar_type());
  check_shape(op, {"bias", bias}, {w.size(0)});
  check_devices(op, {{"x", x}, {"bias", bias}});
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Kernels kernels) {
  check_forward("linear", x, w, bias);
  if (kernels == Kernels::kReference) return reference::linear_forward(x, w, bias);
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&)>("megalith::linear");
  return op.call(x, w, optional(bias));
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Kernels kernels) {
  check_forward("linear_forward", x, w, bias);
  if (kernels == Kernels::kReference) return reference::linear_forward(x, w, bias);
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&)>("megalith::linear_forward");
  return op.call(x, w, optional(bias));
}

at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w, Kernels kernels) {
  constexpr const char* kOp = "linear_dgrad";
  check_floating(kOp, {"dy", dy});
  check_matrix(kOp, {"dy", dy});
  check_matrix(kOp, {"w", w});
  check_dtype(kOp, {"w", w}, dy.scalar_type());
  check_shape(kOp, {"dy", dy}, {dy.size(0), w.size(0)});
  check_devices(kOp, {{"dy", dy}, {"w", w}});
  if (kernels == Kernels::kReference) return reference::linear_dgrad(dy, w);
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("megalith::linear_dgrad");
  return op.call(dy, w);
}

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate, Kernels kernels) {
  constexpr const char* kOp = "linear_wgrad_";
  check_floating(kOp, {"dy", dy});
  check_matrix(kOp, {"dy", dy});
  check_matrix(kOp, {"x", x});
  check_dtype(kOp, {"x", x}, dy.scalar_type());
  check_shape(kOp, {"x", x}, {dy.size(0), x.size(1)});
  check_matrix(kOp, {"dw", dw});
  check_dtype(kOp, {"dw", dw}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"dw", dw}, {dy.size(1), x.size(1)});
  check_devices(kOp, {{"dw", dw}, {"dy", dy}, {"x", x}});
  if (kernels == Kernels::kReference) return reference::linear_wgrad_(dw, dy, x, accumulate);
  static const auto op =
      find_op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>("megalith::linear_wgrad_");
  op.call(dw, dy, x, accumulate);
}

void bias_grad_(const at::Tensor& db, const at::Tensor& dy, Kernels kernels) {
  constexpr const char* kOp = "bias_grad_";
  check_floating(kOp, {"dy", dy});
  check_matrix(kOp, {"dy", dy});
  check_dtype(kOp, {"db", db}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"db", db}, {dy.size(1)});
  check_contiguous(kOp, {"db", db});
  check_devices(kOp, {{"db", db}, {"dy", dy}});
  if (kernels == Kernels::kReference) return reference::bias_grad_(db, dy);
  static const auto op = find_op<void(const at::Tensor&, const at::Tensor&)>("megalith::bias_grad_");
  op.call(db, dy);
}

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start, Kernels kernels) {
  constexpr const char* kOp = "embedding_forward";
  check_dtype(kOp, {"ids", ids}, at::kLong);
  check_rank(kOp, {"ids", ids}, 1);
  check_floating(kOp, {"table", table});
  check_matrix(kOp, {"table", table});
  check_devices(kOp, {{"ids", ids}, {"table", table}});
  if (kernels == Kernels::kReference) return reference::embedding_forward(ids, table, start);
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>("megalith::embedding_forward");
  return op.call(ids, table, start);
}

void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start,
                      Kernels kernels) {
  constexpr const char* kOp = "embedding_wgrad_";
  check_dtype(kOp, {"ids", ids}, at::kLong);
  check_rank(kOp, {"ids", ids}, 1);
  check_floating(kOp, {"dy", dy});
  check_matrix(kOp, {"dy", dy});
  check_shape(kOp, {"dy", dy}, {ids.size(0), dy.size(1)});
  check_matrix(kOp, {"dw", dw});
  check_dtype(kOp, {"dw", dw}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"dw", dw}, {dw.size(0), dy.size(1)});
  check_devices(kOp, {{"dw", dw}, {"ids", ids}, {"dy", dy}});
  if (kernels == Kernels::kReference) return reference::embedding_wgrad_(dw, ids, dy, start);
  static const auto op =
      find_op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t)>("megalith::embedding_wgrad_");
  op.call(dw, ids, dy, start);
}

}  // namespace megalith::ops
