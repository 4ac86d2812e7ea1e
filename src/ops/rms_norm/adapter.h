// From the dispatcher's tensors to the kernels' pointers: allocates the results of rms_norm and fills its kernels'
// arguments, for any device.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "ops/arguments.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops {

inline at::Tensor empty_inv_rms(const at::Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(wide_dtype(x.scalar_type())));
}

inline at::Tensor empty_weight_grad(const at::Tensor& weight) {
  return at::empty(weight.sizes(), weight.options().dtype(wide_dtype(weight.scalar_type())));
}

// The kernels run on the device of the tensor that comes with the arguments.
template <void (*kForward)(const RmsNormForward&, const at::Tensor&),
          void (*kBackward)(const RmsNormBackward&, const at::Tensor&)>
struct RmsNormAdapter {
  using Tensor = at::Tensor;

  static void register_in(torch::Library& m) {
    m.impl("rms_norm", TORCH_FN(rms_norm));
    m.impl("rms_norm_forward", TORCH_FN(rms_norm_forward));
    m.impl("rms_norm_backward", TORCH_FN(rms_norm_backward));
    m.impl("add_rms_norm_forward", TORCH_FN(add_rms_norm_forward));
    m.impl("add_rms_norm_backward", TORCH_FN(add_rms_norm_backward));
  }

  static Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
    return std::get<0>(forward(x, nullptr, weight, eps));
  }

  static std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double eps) {
    auto [y, sum, inv_rms] = forward(x, nullptr, weight, eps);
    return {y, inv_rms};
  }

  static std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                      const Tensor& inv_rms) {
    return backward(dy, nullptr, x, weight, inv_rms);
  }

  static std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(const Tensor& x, const Tensor& residual,
                                                                 const Tensor& weight, double eps) {
    return forward(x, &residual, weight, eps);
  }

  static std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                                          const Tensor& weight, const Tensor& inv_rms) {
    return backward(dy, &dsum, sum, weight, inv_rms);
  }

 private:
  static std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor* residual, const Tensor& weight,
                                                    double eps) {
    Tensor y = at::empty_like(x), inv_rms = empty_inv_rms(x);
    Tensor sum = residual ? at::empty_like(x) : Tensor();
    kForward({.dtype = to_dtype(x.scalar_type()),
              .rows = x.size(0),
              .columns = x.size(1),
              .x = x.const_data_ptr(),
              .residual = residual ? residual->const_data_ptr() : nullptr,
              .weight = weight.const_data_ptr(),
              .eps = eps,
              .y = y.mutable_data_ptr(),
              .sum = residual ? sum.mutable_data_ptr() : nullptr,
              .inv_rms = inv_rms.mutable_data_ptr()},
             x);
    return {y, sum, inv_rms};
  }

  static std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor* dsum, const Tensor& x,
                                             const Tensor& weight, const Tensor& inv_rms) {
    Tensor dx = at::empty_like(x), dweight = empty_weight_grad(weight);
    Tensor scratch = at::empty({std::min(x.size(0), kRmsNormBlocks), x.size(1)}, dweight.options());
    kBackward({.dtype = to_dtype(x.scalar_type()),
               .rows = x.size(0),
               .columns = x.size(1),
               .dy = dy.const_data_ptr(),
               .dsum = dsum ? dsum->const_data_ptr() : nullptr,
               .x = x.const_data_ptr(),
               .weight = weight.const_data_ptr(),
               .inv_rms = inv_rms.const_data_ptr(),
               .dx = dx.mutable_data_ptr(),
               .dweight = dweight.mutable_data_ptr(),
               .scratch = scratch.mutable_data_ptr(),
               .blocks = scratch.size(0)},
              x);
    return {dx, dweight};
  }
};

}  // namespace megalith::ops
