#include "ops/rms_norm/rms_norm.h"

#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/rms_norm/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_rms_norm(const char* op, const Tensor& x, const Tensor& weight) {
  check_dense_rows(op, {"x", x});
  check_dense(op, {"weight", weight}, {x.size(1)}, x.scalar_type(), {"x", x});
}

void check_rms_norm_backward(const char* op, const Tensor& dy, const Argument& x, const Tensor& weight,
                             const Tensor& inv_rms) {
  check_rms_norm(op, x.tensor, weight);
  const at::ScalarType dtype = x.tensor.scalar_type();
  check_dense(op, {"dy", dy}, x.tensor.sizes(), dtype, x);
  check_dense(op, {"inv_rms", inv_rms}, {x.tensor.size(0)}, wide_dtype(dtype), x);
}

std::tuple<Tensor, Tensor, Tensor> empty_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& /*weight*/,
                                                  double /*eps*/, const Tensor& /*amax*/) {
  const Tensor sum = residual.defined() ? at::empty_like(x) : Tensor();
  return {at::empty_like(x), sum, at::empty({x.size(0)}, wide_options(x))};
}

std::tuple<Tensor, Tensor> empty_rms_norm_gradients(const Tensor& /*dy*/, const Tensor& /*dsum*/, const Tensor& x,
                                                    const Tensor& weight, const Tensor& /*inv_rms*/) {
  return {at::empty_like(x), at::empty(weight.sizes(), wide_options(x))};
}

template <void (*kLaunch)(const RmsNormForward&, const Tensor& x)>
std::tuple<Tensor, Tensor, Tensor> rms_norm_by(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                               double eps, const Tensor& amax) {
  auto [y, sum, inv_rms] = empty_rms_norm(x, residual, weight, eps, amax);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .rows = x.size(0),
           .columns = x.size(1),
           .x = x.const_data_ptr(),
           .residual = data_or_null(residual),
           .weight = weight.const_data_ptr(),
           .eps = eps,
           .y = y.mutable_data_ptr(),
           .sum = mutable_data_or_null(sum),
           .inv_rms = inv_rms.mutable_data_ptr(),
           .amax = x.is_cpu() ? nullptr : mutable_data_or_null(amax)},
          x);
  if (x.is_cpu()) raise_amax(amax, y);
  return {y, sum, inv_rms};
}

template <void (*kLaunch)(const RmsNormBackward&, const Tensor& x), int64_t (*kBlocks)(int64_t rows)>
std::tuple<Tensor, Tensor> rms_norm_backward_by(const Tensor& dy, const Tensor& dsum, const Tensor& x,
                                                const Tensor& weight, const Tensor& inv_rms) {
  auto [dx, dweight] = empty_rms_norm_gradients(dy, dsum, x, weight, inv_rms);
  const Tensor scratch = at::empty({kBlocks(x.size(0)), x.size(1)}, dweight.options());
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .rows = x.size(0),
           .columns = x.size(1),
           .dy = dy.const_data_ptr(),
           .dsum = data_or_null(dsum),
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

void run_rms_norm(const RmsNormForward& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(rms_norm_forward)(a); }
void run_rms_norm_backward(const RmsNormBackward& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(rms_norm_backward)(a); }

constexpr RmsNormTable kRmsNormCpu{.forward = rms_norm_by<run_rms_norm>,
                                   .backward = rms_norm_backward_by<run_rms_norm_backward, rms_norm_cpu_blocks>};
constexpr RmsNormTable kRmsNormMeta{.forward = empty_rms_norm, .backward = empty_rms_norm_gradients};
#ifdef MEGALITH_GPU_KERNELS
constexpr RmsNormTable kRmsNormGpu{
    .forward = rms_norm_by<gpu::on_stream_of<&gpu::rms_norm_forward, RmsNormForward>>,
    .backward = rms_norm_backward_by<gpu::on_stream_of<&gpu::rms_norm_backward, RmsNormBackward>, rms_norm_gpu_blocks>};
#endif

}  // namespace

constexpr Operator<RmsNormTable> kRmsNorm{.name = "rms_norm",
                                          .reference = &kRmsNormReference,
                                          .cpu = &kRmsNormCpu,
                                          .meta = &kRmsNormMeta,
#ifdef MEGALITH_GPU_KERNELS
                                          .gpu = &kRmsNormGpu
#endif
};

std::tuple<Tensor, Tensor> rms_norm_forward(const Tensor& x, const Tensor& weight, double eps, Kernels kernels,
                                            const Tensor& amax) {
  check_rms_norm("rms_norm_forward", x, weight);
  check_amax("rms_norm_forward", amax, x);
  auto [y, sum, inv_rms] =
      kRmsNorm.run("rms_norm_forward", &RmsNormTable::forward, kernels, x, Tensor(), weight, eps, amax);
  return {y, inv_rms};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                             const Tensor& inv_rms, Kernels kernels) {
  check_rms_norm_backward("rms_norm_backward", dy, {"x", x}, weight, inv_rms);
  return kRmsNorm.run("rms_norm_backward", &RmsNormTable::backward, kernels, dy, Tensor(), x, weight, inv_rms);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                        double eps, Kernels kernels, const Tensor& amax) {
  constexpr const char* kOp = "add_rms_norm_forward";
  check_rms_norm(kOp, x, weight);
  check_amax(kOp, amax, x);
  check_dense(kOp, {"residual", residual}, x.sizes(), x.scalar_type(), {"x", x});
  return kRmsNorm.run(kOp, &RmsNormTable::forward, kernels, x, residual, weight, eps, amax);
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& dy, const Tensor& dsum, const Tensor& sum,
                                                 const Tensor& weight, const Tensor& inv_rms, Kernels kernels) {
  constexpr const char* kOp = "add_rms_norm_backward";
  check_rms_norm_backward(kOp, dy, {"sum", sum}, weight, inv_rms);
  check_dense(kOp, {"dsum", dsum}, sum.sizes(), sum.scalar_type(), {"sum", sum});
  return kRmsNorm.run(kOp, &RmsNormTable::backward, kernels, dy, dsum, sum, weight, inv_rms);
}

}  // namespace megalith::ops
