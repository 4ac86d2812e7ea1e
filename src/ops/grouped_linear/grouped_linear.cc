#include "ops/grouped_linear/grouped_linear.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#ifdef MEGALITH_GPU_KERNELS
#include "ops/gpu/on_stream_of.h"
#include "ops/grouped_linear/kernel.h"
#endif

namespace megalith::ops {
namespace {

void check_offsets(const char* op, const at::Tensor& offsets, const at::Tensor& x) {
  check_dtype(op, {"offsets", offsets}, at::kLong);
  check_rank(op, {"offsets", offsets}, 1);
  check_contiguous(op, {"offsets", offsets});
  if (offsets.size(0) < 2) {
    throw UserError(
        fmt::format("{}: offsets has {} numbers, but must have one more than there are experts", op, offsets.size(0)),
        "for one expert and t rows give 0, t");
  }
  if (!offsets.is_cpu()) return check_devices(op, {{"x", x}, {"offsets", offsets}});
  const auto* rows = offsets.const_data_ptr<int64_t>();
  const int64_t num_experts = offsets.size(0) - 1;
  bool fits = rows[0] == 0 && rows[num_experts] == x.size(0);
  for (int64_t j = 0; j < num_experts; ++j) fits = fits && rows[j] <= rows[j + 1];
  if (!fits) {
    throw UserError(fmt::format("{}: offsets must rise from 0 to the number of rows, {}, but begins with {} and ends "
                                "with {}",
                                op, x.size(0), rows[0], rows[num_experts]),
                    "give the sums of the experts' counts, and sort the rows by expert");
  }
}

// (e, o, h)
at::Tensor per_expert(const char* op, const Argument& w, const at::Tensor& offsets) {
  const int64_t num_experts = offsets.size(0) - 1;
  check_contiguous(op, w);
  if (w.tensor.dim() == 2) {
    if (w.tensor.size(0) % num_experts != 0) {
      throw UserError(
          fmt::format("{}: {} has {} rows, which {} experts cannot share", op, w.name, w.tensor.size(0), num_experts),
          "stack the experts' matrices, all of one shape");
    }
    return w.tensor.view({num_experts, w.tensor.size(0) / num_experts, w.tensor.size(1)});
  }
  check_rank(op, w, 3);
  check_shape(op, w, {num_experts, w.tensor.size(1), w.tensor.size(2)});
  return w.tensor;
}

at::Tensor check_product(const char* op, const Argument& rows, const at::Tensor& w, const at::Tensor& offsets,
                         int64_t weight_dim) {
  check_floating(op, rows);
  check_rows(op, rows);
  check_dtype(op, {"w", w}, rows.tensor.scalar_type());
  check_devices(op, {rows, {"w", w}});
  check_offsets(op, offsets, rows.tensor);
  const at::Tensor experts = per_expert(op, {"w", w}, offsets);
  check_shape(op, rows, {rows.tensor.size(0), experts.size(weight_dim)});
  return experts;
}

#ifdef MEGALITH_GPU_KERNELS

at::Tensor offsets_beside(const at::Tensor& rows, const at::Tensor& offsets) {
  return offsets.to(rows.device(), at::kLong, /*non_blocking=*/true);
}

at::Tensor multiply_on_gpu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets, bool w_is_transposed) {
  const int64_t n = w.size(w_is_transposed ? 1 : 2);
  at::Tensor y = at::empty({x.size(0), n}, x.options());
  const at::Tensor rows = offsets_beside(x, offsets);
  gpu::on_stream_of<&gpu::grouped_product, gpu::GroupedProduct>({.dtype = to_dtype(x.scalar_type()),
                                                                 .experts = w.size(0),
                                                                 .rows = x.size(0),
                                                                 .n = n,
                                                                 .k = x.size(1),
                                                                 .offsets = rows.const_data_ptr<int64_t>(),
                                                                 .x = x.const_data_ptr(),
                                                                 .x_stride = x.stride(0),
                                                                 .w = w.const_data_ptr(),
                                                                 .w_is_transposed = w_is_transposed,
                                                                 .y = y.mutable_data_ptr()},
                                                                x);
  return y;
}

at::Tensor grouped_linear_on_gpu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  if (takes_grouped_product(x, w)) return kGroupedLinearGpuAten.forward(x, w, offsets);
  return multiply_on_gpu(x, w, offsets, /*w_is_transposed=*/true);
}

at::Tensor grouped_dgrad_on_gpu(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets) {
  if (takes_grouped_product(dy, w)) return kGroupedLinearGpuAten.dgrad(dy, w, offsets);
  return multiply_on_gpu(dy, w, offsets, /*w_is_transposed=*/false);
}

void grouped_wgrad_on_gpu(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                          bool accumulate) {
  const at::Tensor rows = offsets_beside(x, offsets);
  gpu::on_stream_of<&gpu::grouped_gradient, gpu::GroupedGradient>({.dtype = to_dtype(x.scalar_type()),
                                                                   .experts = dw.size(0),
                                                                   .o = dw.size(1),
                                                                   .h = dw.size(2),
                                                                   .offsets = rows.const_data_ptr<int64_t>(),
                                                                   .dy = dy.const_data_ptr(),
                                                                   .dy_stride = dy.stride(0),
                                                                   .x = x.const_data_ptr(),
                                                                   .x_stride = x.stride(0),
                                                                   .dw = dw.mutable_data_ptr(),
                                                                   .accumulate = accumulate},
                                                                  x);
}

constexpr GroupedLinearTable kGroupedLinearGpu{
    .forward = grouped_linear_on_gpu, .dgrad = grouped_dgrad_on_gpu, .wgrad_ = grouped_wgrad_on_gpu};

#endif

}  // namespace

constexpr Operator<GroupedLinearTable> kGroupedLinear{.name = "grouped_linear",
                                                      .reference = &kGroupedLinearReference,
                                                      .cpu = &kGroupedLinearCpu,
                                                      .meta = &kGroupedLinearMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                      .gpu = &kGroupedLinearGpu,
#endif
                                                      .gpu_aten = &kGroupedLinearGpuAten};

at::Tensor grouped_linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets,
                                  Kernels kernels) {
  const at::Tensor experts = check_product("grouped_linear_forward", {"x", x}, w, offsets, 2);
  return kGroupedLinear.run("grouped_linear_forward", &GroupedLinearTable::forward, kernels, x, experts, offsets);
}

at::Tensor grouped_linear_dgrad(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& offsets, Kernels kernels) {
  const at::Tensor experts = check_product("grouped_linear_dgrad", {"dy", dy}, w, offsets, 1);
  return kGroupedLinear.run("grouped_linear_dgrad", &GroupedLinearTable::dgrad, kernels, dy, experts, offsets);
}

void grouped_linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets,
                           bool accumulate, Kernels kernels) {
  constexpr const char* kOp = "grouped_linear_wgrad_";
  check_floating(kOp, {"dy", dy});
  check_rows(kOp, {"dy", dy});
  check_rows(kOp, {"x", x});
  check_dtype(kOp, {"x", x}, dy.scalar_type());
  check_shape(kOp, {"x", x}, {dy.size(0), x.size(1)});
  check_dtype(kOp, {"dw", dw}, wide_dtype(dy.scalar_type()));
  check_devices(kOp, {{"dw", dw}, {"dy", dy}, {"x", x}});
  check_offsets(kOp, offsets, x);
  const at::Tensor experts = per_expert(kOp, {"dw", dw}, offsets);
  check_shape(kOp, {"dw", experts}, {experts.size(0), dy.size(1), x.size(1)});
  kGroupedLinear.run(kOp, &GroupedLinearTable::wgrad_, kernels, experts, dy, x, offsets, accumulate);
}

}  // namespace megalith::ops
