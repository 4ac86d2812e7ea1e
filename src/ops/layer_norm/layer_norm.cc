// Interface of layer_norm: checks the arguments, then calls the dispatcher or the reference.
#include "ops/layer_norm/layer_norm.h"

#include "ops/arguments.h"
#include "ops/layer_norm/reference.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, bool zero_centered_weight=False) -> Tensor");
  m.def(
      "layer_norm_forward(Tensor x, Tensor weight, Tensor bias, float eps, bool zero_centered_weight=False) -> "
      "(Tensor y, Tensor mean, Tensor inv_std)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor inv_std, "
      "bool zero_centered_weight=False) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "add_layer_norm_forward(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps, "
      "bool zero_centered_weight=False) -> (Tensor y, Tensor sum, Tensor mean, Tensor inv_std)");
  m.def(
      "add_layer_norm_backward(Tensor dy, Tensor dsum, Tensor sum, Tensor weight, Tensor mean, Tensor inv_std, "
      "bool zero_centered_weight=False) -> (Tensor dx, Tensor dweight, Tensor dbias)");
}

namespace megalith::ops {
namespace {

using at::Tensor;

void check_beside(const char* op, const Argument& argument, const Argument& x, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  check_shape(op, argument, shape);
  check_dtype(op, argument, dtype);
  check_contiguous(op, argument);
  check_devices(op, {x, argument});
}

void check_plane_and_weight(const char* op, const Argument& x, const Tensor& weight) {
  check_floating(op, x);
  check_rank(op, x, 2);
  check_contiguous(op, x);
  check_beside(op, {"weight", weight}, x, {x.tensor.size(1)}, x.tensor.scalar_type());
}

void check_layer_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_plane_and_weight(op, {"x", x}, weight);
  check_beside(op, {"bias", bias}, {"x", x}, {x.size(1)}, x.scalar_type());
}

// x is what was normalised.
void check_layer_norm_backward(const char* op, const Tensor& dy, const Argument& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& inv_std) {
  check_plane_and_weight(op, x, weight);
  check_beside(op, {"dy", dy}, x, x.tensor.sizes(), x.tensor.scalar_type());
  const at::ScalarType wide = wide_dtype(x.tensor.scalar_type());
  check_beside(op, {"mean", mean}, x, {x.tensor.size(0)}, wide);
  check_beside(op, {"inv_std", inv_std}, x, {x.tensor.size(0)}, wide);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool zero_centered_weight,
                  Kernels kernels) {
  check_layer_norm("layer_norm", x, weight, bias);
  if (kernels == Kernels::kReference) return reference::layer_norm(x, weight, bias, eps, zero_centered_weight);
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, bool)>("megalith::layer_norm");
  return op.call(x, weight, bias, eps, zero_centered_weight);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      double eps, bool zero_centered_weight, Kernels kernels) {
  check_layer_norm("layer_norm_forward", x, weight, bias);
  if (kernels == Kernels::kReference) return reference::layer_norm_forward(x, weight, bias, eps, zero_centered_weight);
  static const auto op =
      find_op<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, bool)>(
          "megalith::layer_norm_forward");
  return op.call(x, weight, bias, eps, zero_centered_weight);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                       const Tensor& mean, const Tensor& inv_std,
                                                       bool zero_centered_weight, Kernels kernels) {
  check_layer_norm_backward("layer_norm_backward", dy, {"x", x}, weight, mean, inv_std);
  if (kernels == Kernels::kReference) {
    return reference::layer_norm_backward(dy, x, weight, mean, inv_std, zero_centered_weight);
  }
  static const auto op =
      find_op<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                 const Tensor&, bool)>("megalith::layer_norm_backward");
  return op.call(dy, x, weight, mean, inv_std, zero_centered_weight);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_forward(const Tensor& x, const Tensor& residual,
                                                                  const Tensor& weight, const Tensor& bias, double eps,
                                                                  bool zero_centered_weight, Kernels kernels) {
  constexpr const char* kOp = "add_layer_norm_forward";
  check_layer_norm(kOp, x, weight, bias);
  check_beside(kOp, {"residual", residual}, {"x", x}, x.sizes(), x.scalar_type());
  if (kernels == Kernels::kReference) {
    return reference::add_layer_norm_forward(x, residual, weight, bias, eps, zero_centered_weight);
  }
  static const auto op = find_op<std::tuple<Tensor, Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, bool)>("megalith::add_layer_norm_forward");
  return op.call(x, residual, weight, bias, eps, zero_centered_weight);
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                                           const Tensor& weight, const Tensor& mean,
                                                           const Tensor& inv_std, bool zero_centered_weight,
                                                           Kernels kernels) {
  constexpr const char* kOp = "add_layer_norm_backward";
  check_layer_norm_backward(kOp, dy, {"sum", sum}, weight, mean, inv_std);
  check_beside(kOp, {"dsum", dsum}, {"sum", sum}, sum.sizes(), sum.scalar_type());
  if (kernels == Kernels::kReference) {
    return reference::add_layer_norm_backward(dy, dsum, sum, weight, mean, inv_std, zero_centered_weight);
  }
  static const auto op = find_op<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                                    const Tensor&, const Tensor&, const Tensor&, bool)>(
      "megalith::add_layer_norm_backward");
  return op.call(dy, dsum, sum, weight, mean, inv_std, zero_centered_weight);
}

}  // namespace megalith::ops
