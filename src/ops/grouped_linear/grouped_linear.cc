#include "ops/grouped_linear/grouped_linear.h"

#include "core/error.h"
#include "ops/arguments.h"

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

}  // namespace

constexpr Operator<GroupedLinearTable> kGroupedLinear{.name = "grouped_linear",
                                                      .reference = &kGroupedLinearReference,
                                                      .cpu = &kGroupedLinearCpu,
                                                      .meta = &kGroupedLinearMeta,
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
