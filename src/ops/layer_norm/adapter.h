// From the dispatcher's tensors to the kernels' pointers: allocates the results of layer_norm and fills its kernels'
// arguments, for any device.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "ops/arguments.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops {

// mean or inv_std of the rows of x
inline at::Tensor empty_row_statistic(const at::Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(wide_dtype(x.scalar_type())));
}

// dweight or dbias of columns of x
inline at::Tensor empty_column_grad(const at::Tensor& x) {
  return at::empty({x.size(1)}, x.options().dtype(wide_dtype(x.scalar_type())));
}

// The kernels run on the device of the tensor that comes with the arguments.
template <void (*kForward)(const LayerNormForward&, const at::Tensor&),
          void (*kBackward)(const LayerNormBackward&, const at::Tensor&)>
struct LayerNormAdapter {
  using Tensor = at::Tensor;

  static void register_in(torch::Library& m) {
    m.impl("layer_norm", TORCH_FN(layer_norm));
    m.impl("layer_norm_forward", TORCH_FN(layer_norm_forward));
    m.impl("layer_norm_backward", TORCH_FN(layer_norm_backward));
    m.impl("add_layer_norm_forward", TORCH_FN(add_layer_norm_forward));
    m.impl("add_layer_norm_backward", TORCH_FN(add_layer_norm_backward));
  }

  static Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool zero_centered) {
    return std::get<0>(forward(x, nullptr, weight, bias, eps, zero_centered));
  }

  static std::tuple<Tensor, Tensor, Tensor> layer_norm_forward(const Tensor& x, const Tensor& weight,
                                                               const Tensor& bias, double eps, bool zero_centered) {
    auto [y, sum, mean, inv_std] = forward(x, nullptr, weight, bias, eps, zero_centered);
    return {y, mean, inv_std};
  }

  static std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                                const Tensor& mean, const Tensor& inv_std,
                                                                bool zero_centered) {
    return backward(dy, nullptr, x, weight, mean, inv_std, zero_centered);
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_forward(const Tensor& x, const Tensor& residual,
                                                                           const Tensor& weight, const Tensor& bias,
                                                                           double eps, bool zero_centered) {
    return forward(x, &residual, weight, bias, eps, zero_centered);
  }

  static std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(const Tensor& dy, const Tensor& dsum,
                                                                    const Tensor& sum, const Tensor& weight,
                                                                    const Tensor& mean, const Tensor& inv_std,
                                                                    bool zero_centered) {
    return backward(dy, &dsum, sum, weight, mean, inv_std, zero_centered);
  }

 private:
  static std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor* residual,
                                                            const Tensor& weight, const Tensor& bias, double eps,
                                                            bool zero_centered) {
    Tensor y = at::empty_like(x), mean = empty_row_statistic(x), inv_std = empty_row_statistic(x);
    Tensor sum = residual ? at::empty_like(x) : Tensor();
    kForward({.dtype = to_dtype(x.scalar_type()),
              .rows = x.size(0),
              .columns = x.size(1),
              .x = x.const_data_ptr(),
              .residual = residual ? residual->const_data_ptr() : nullptr,
              .weight = weight.const_data_ptr(),
              .weight_offset = zero_centered ? 1.0 : 0.0,
              .bias = bias.const_data_ptr(),
              .eps = eps,
              .y = y.mutable_data_ptr(),
              .sum = residual ? sum.mutable_data_ptr() : nullptr,
              .mean = mean.mutable_data_ptr(),
              .inv_std = inv_std.mutable_data_ptr()},
             x);
    return {y, sum, mean, inv_std};
  }

  static std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor* dsum, const Tensor& x,
                                                     const Tensor& weight, const Tensor& mean, const Tensor& inv_std,
                                                     bool zero_centered) {
    Tensor dx = at::empty_like(x), dweight = empty_column_grad(x), dbias = empty_column_grad(x);
    Tensor scratch = at::empty({std::min(x.size(0), kLayerNormBlocks), 2, x.size(1)}, dweight.options());
    kBackward({.dtype = to_dtype(x.scalar_type()),
               .rows = x.size(0),
               .columns = x.size(1),
               .dy = dy.const_data_ptr(),
               .dsum = dsum ? dsum->const_data_ptr() : nullptr,
               .x = x.const_data_ptr(),
               .weight = weight.const_data_ptr(),
               .weight_offset = zero_centered ? 1.0 : 0.0,
               .mean = mean.const_data_ptr(),
               .inv_std = inv_std.const_data_ptr(),
               .dx = dx.mutable_data_ptr(),
               .dweight = dweight.mutable_data_ptr(),
               .dbias = dbias.mutable_data_ptr(),
               .scratch = scratch.mutable_data_ptr(),
               .blocks = scratch.size(0)},
              x);
    return {dx, dweight, dbias};
  }
};

}  // namespace megalith::ops
