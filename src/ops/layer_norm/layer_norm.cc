#include "ops/layer_norm/layer_norm.h"

#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/layer_norm/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_plane_and_weight(const char* op, const Argument& x, const Tensor& weight) {
  check_dense_rows(op, x);
  check_dense(op, {"weight", weight}, {x.tensor.size(1)}, x.tensor.scalar_type(), x);
}

void check_layer_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_plane_and_weight(op, {"x", x}, weight);
  check_dense(op, {"bias", bias}, {x.size(1)}, x.scalar_type(), {"x", x});
}

// x: what was normalised.
void check_layer_norm_backward(const char* op, const Tensor& dy, const Argument& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& inv_std) {
  check_plane_and_weight(op, x, weight);
  check_dense(op, {"dy", dy}, x.tensor.sizes(), x.tensor.scalar_type(), x);
  const at::ScalarType wide = wide_dtype(x.tensor.scalar_type());
  check_dense(op, {"mean", mean}, {x.tensor.size(0)}, wide, x);
  check_dense(op, {"inv_std", inv_std}, {x.tensor.size(0)}, wide, x);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> empty_layer_norm(const Tensor& x, const Tensor& residual,
                                                            const Tensor& /*weight*/, const Tensor& /*bias*/,
                                                            double /*eps*/, bool /*zero_centered*/,
                                                            const Tensor& /*amax*/) {
  const auto statistic = [&] { return at::empty({x.size(0)}, wide_options(x)); };
  return {at::empty_like(x), residual.defined() ? at::empty_like(x) : Tensor(), statistic(), statistic()};
}

std::tuple<Tensor, Tensor, Tensor> empty_layer_norm_gradients(const Tensor& /*dy*/, const Tensor& /*dsum*/,
                                                              const Tensor& x, const Tensor& /*weight*/,
                                                              const Tensor& /*mean*/, const Tensor& /*inv_std*/,
                                                              bool /*zero_centered*/) {
  const auto of_columns = [&] { return at::empty({x.size(1)}, wide_options(x)); };
  return {at::empty_like(x), of_columns(), of_columns()};
}

template <void (*kLaunch)(const LayerNormForward&, const Tensor& x)>
std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_by(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                         const Tensor& bias, double eps, bool zero_centered,
                                                         const Tensor& amax) {
  auto [y, sum, mean, inv_std] = empty_layer_norm(x, residual, weight, bias, eps, zero_centered, amax);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .rows = x.size(0),
           .columns = x.size(1),
           .x = x.const_data_ptr(),
           .residual = data_or_null(residual),
           .weight = weight.const_data_ptr(),
           .weight_offset = zero_centered ? 1.0 : 0.0,
           .bias = bias.const_data_ptr(),
           .eps = eps,
           .y = y.mutable_data_ptr(),
           .sum = mutable_data_or_null(sum),
           .mean = mean.mutable_data_ptr(),
           .inv_std = inv_std.mutable_data_ptr(),
           .amax = x.is_cpu() ? nullptr : mutable_data_or_null(amax)},
          x);
  if (x.is_cpu()) raise_amax(amax, y);
  return {y, sum, mean, inv_std};
}

template <void (*kLaunch)(const LayerNormBackward&, const Tensor& x), int64_t (*kBlocks)(int64_t rows)>
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_by(const Tensor& dy, const Tensor& dsum, const Tensor& x,
                                                          const Tensor& weight, const Tensor& mean,
                                                          const Tensor& inv_std, bool zero_centered) {
  auto [dx, dweight, dbias] = empty_layer_norm_gradients(dy, dsum, x, weight, mean, inv_std, zero_centered);
  const Tensor scratch = at::empty({kBlocks(x.size(0)), 2, x.size(1)}, dweight.options());
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .rows = x.size(0),
           .columns = x.size(1),
           .dy = dy.const_data_ptr(),
           .dsum = data_or_null(dsum),
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

void run_layer_norm(const LayerNormForward& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(layer_norm_forward)(a); }
void run_layer_norm_backward(const LayerNormBackward& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(layer_norm_backward)(a);
}

constexpr LayerNormTable kLayerNormCpu{
    .forward = layer_norm_by<run_layer_norm>,
    .backward = layer_norm_backward_by<run_layer_norm_backward, layer_norm_cpu_blocks>};
constexpr LayerNormTable kLayerNormMeta{.forward = empty_layer_norm, .backward = empty_layer_norm_gradients};
#ifdef MEGALITH_GPU_KERNELS
constexpr LayerNormTable kLayerNormGpu{
    .forward = layer_norm_by<gpu::on_stream_of<&gpu::layer_norm_forward, LayerNormForward>>,
    .backward =
        layer_norm_backward_by<gpu::on_stream_of<&gpu::layer_norm_backward, LayerNormBackward>, layer_norm_gpu_blocks>};
#endif

}  // namespace

constexpr Operator<LayerNormTable> kLayerNorm{.name = "layer_norm",
                                              .reference = &kLayerNormReference,
                                              .cpu = &kLayerNormCpu,
                                              .meta = &kLayerNormMeta,
#ifdef MEGALITH_GPU_KERNELS
                                              .gpu = &kLayerNormGpu
#endif
};

std::tuple<Tensor, Tensor, Tensor> layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      double eps, bool zero_centered_weight, Kernels kernels,
                                                      const Tensor& amax) {
  check_layer_norm("layer_norm_forward", x, weight, bias);
  check_amax("layer_norm_forward", amax, x);
  auto [y, sum, mean, inv_std] = kLayerNorm.run("layer_norm_forward", &LayerNormTable::forward, kernels, x, Tensor(),
                                                weight, bias, eps, zero_centered_weight, amax);
  return {y, mean, inv_std};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                       const Tensor& mean, const Tensor& inv_std,
                                                       bool zero_centered_weight, Kernels kernels) {
  check_layer_norm_backward("layer_norm_backward", dy, {"x", x}, weight, mean, inv_std);
  return kLayerNorm.run("layer_norm_backward", &LayerNormTable::backward, kernels, dy, Tensor(), x, weight, mean,
                        inv_std, zero_centered_weight);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_forward(const Tensor& x, const Tensor& residual,
                                                                  const Tensor& weight, const Tensor& bias, double eps,
                                                                  bool zero_centered_weight, Kernels kernels,
                                                                  const Tensor& amax) {
  constexpr const char* kOp = "add_layer_norm_forward";
  check_layer_norm(kOp, x, weight, bias);
  check_amax(kOp, amax, x);
  check_dense(kOp, {"residual", residual}, x.sizes(), x.scalar_type(), {"x", x});
  return kLayerNorm.run(kOp, &LayerNormTable::forward, kernels, x, residual, weight, bias, eps, zero_centered_weight,
                        amax);
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                                           const Tensor& weight, const Tensor& mean,
                                                           const Tensor& inv_std, bool zero_centered_weight,
                                                           Kernels kernels) {
  constexpr const char* kOp = "add_layer_norm_backward";
  check_layer_norm_backward(kOp, dy, {"sum", sum}, weight, mean, inv_std);
  check_dense(kOp, {"dsum", dsum}, sum.sizes(), sum.scalar_type(), {"sum", sum});
  return kLayerNorm.run(kOp, &LayerNormTable::backward, kernels, dy, dsum, sum, weight, mean, inv_std,
                        zero_centered_weight);
}

}  // namespace megalith::ops
