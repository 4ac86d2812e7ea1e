// Interface of rms_norm: checks the arguments, then calls the dispatcher or the reference.
#include "ops/rms_norm/rms_norm.h"

#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/rms_norm/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor inv_rms)");
  m.def("rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inv_rms) -> (Tensor dx, Tensor dweight)");
  m.def(
      "add_rms_norm_forward(Tensor x, Tensor residual, Tensor weight, float eps) -> "
      "(Tensor y, Tensor sum, Tensor inv_rms)");
  m.def(
      "add_rms_norm_backward(Tensor dy, Tensor dsum, Tensor sum, Tensor weight, Tensor inv_rms) -> "
      "(Tensor dx, Tensor dweight)");
}

namespace megalith::ops {
namespace {

void check_like(const char* op, const Argument& argument, const at::Tensor& x) {
  check_shape(op, argument, x.sizes());
  check_dtype(op, argument, x.scalar_type());
  check_contiguous(op, argument);
}

void check_forward(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  check_floating(op, {"x", x});
  check_rank(op, {"x", x}, 2);
  check_contiguous(op, {"x", x});
  check_shape(op, {"weight", weight}, {x.size(1)});
  check_dtype(op, {"weight", weight}, x.scalar_type());
  check_contiguous(op, {"weight", weight});
  check_devices(op, {{"x", x}, {"weight", weight}});
}

void check_backward(const char* op, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& inv_rms) {
  check_forward(op, x, weight);
  check_like(op, {"dy", dy}, x);
  check_shape(op, {"inv_rms", inv_rms}, {x.size(0)});
  check_dtype(op, {"inv_rms", inv_rms}, wide_dtype(x.scalar_type()));
  check_contiguous(op, {"inv_rms", inv_rms});
  check_devices(op, {{"x", x}, {"dy", dy}, {"inv_rms", inv_rms}});
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, Kernels kernels) {
  check_forward("rms_norm", x, weight);
  if (kernels == Kernels::kReference) return reference::rms_norm(x, weight, eps);
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("megalith::rms_norm");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps,
                                                    Kernels kernels) {
  check_forward("rms_norm_forward", x, weight);
  if (kernels == Kernels::kReference) return reference::rms_norm_forward(x, weight, eps);
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double)>(
      "megalith::rms_norm_forward");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& inv_rms,
                                                     Kernels kernels) {
  check_backward("rms_norm_backward", dy, x, weight, inv_rms);
  if (kernels == Kernels::kReference) return reference::rms_norm_backward(dy, x, weight, inv_rms);
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>("megalith::rms_norm_backward");
  return op.call(dy, x, weight, inv_rms);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                                                    const at::Tensor& weight, double eps,
                                                                    Kernels kernels) {
  check_forward("add_rms_norm_forward", x, weight);
  check_like("add_rms_norm_forward", {"residual", residual}, x);
  check_devices("add_rms_norm_forward", {{"x", x}, {"residual", residual}});
  if (kernels == Kernels::kReference) return reference::add_rms_norm_forward(x, residual, weight, eps);
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>("megalith::add_rms_norm_forward");
  return op.call(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                         const at::Tensor& sum, const at::Tensor& weight,
                                                         const at::Tensor& inv_rms, Kernels kernels) {
  check_backward("add_rms_norm_backward", dy, sum, weight, inv_rms);
  check_like("add_rms_norm_backward", {"dsum", dsum}, sum);
  check_devices("add_rms_norm_backward", {{"sum", sum}, {"dsum", dsum}});
  if (kernels == Kernels::kReference) return reference::add_rms_norm_backward(dy, dsum, sum, weight, inv_rms);
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "megalith::add_rms_norm_backward");
  return op.call(dy, dsum, sum, weight, inv_rms);
}

}  // namespace megalith::ops
