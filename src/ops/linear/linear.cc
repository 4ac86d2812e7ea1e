// The CPU's own do not depend on the number of threads; LibTorch's GEMMs may.
#include "ops/linear/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/linear/gpu_kernel.h"
#include "ops/linear/kernel.h"
#include "ops/linear/products.h"

namespace megalith::ops {
namespace {

void check_linear(const char* op, const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  check_floating(op, {"x", x});
  check_rows(op, {"x", x});
  check_rows(op, {"w", w});
  check_dtype(op, {"w", w}, x.scalar_type());
  check_shape(op, {"w", w}, {w.size(0), x.size(1)});
  check_devices(op, {{"x", x}, {"w", w}});
  if (!bias.defined()) return;
  check_dtype(op, {"bias", bias}, x.scalar_type());
  check_shape(op, {"bias", bias}, {w.size(0)});
  check_devices(op, {{"x", x}, {"bias", bias}});
}

at::Tensor empty_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& /*bias*/) {
  return at::empty({x.size(0), w.size(0)}, x.options());
}

at::Tensor empty_linear_dgrad(const at::Tensor& dy, const at::Tensor& w) {
  return at::empty({dy.size(0), w.size(1)}, dy.options());
}

at::Tensor empty_embedding(const at::Tensor& ids, const at::Tensor& table, int64_t /*start*/) {
  return at::empty({ids.size(0), table.size(1)}, table.options());
}

at::Tensor linear_on_cpu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  at::Tensor y = empty_linear(x, w, bias);
  cpu::linear_forward_out(y, x, w, bias);
  return y;
}

at::Tensor linear_dgrad_on_cpu(const at::Tensor& dy, const at::Tensor& w) {
  at::Tensor dx = empty_linear_dgrad(dy, w);
  cpu::linear_dgrad_out(dx, dy, w);
  return dx;
}

void bias_grad_on_cpu(const at::Tensor& db, const at::Tensor& dy) {
  MEGALITH_CPU_KERNEL(column_sum)
  ({.dtype = to_dtype(dy.scalar_type()),
    .rows = dy.size(0),
    .columns = dy.size(1),
    .stride = dy.stride(0),
    .dy = dy.const_data_ptr(),
    .db = db.mutable_data_ptr()});
}

at::Tensor embedding_forward_on_cpu(const at::Tensor& ids, const at::Tensor& table, int64_t start) {
  const int64_t t = ids.size(0), h = table.size(1), num_rows = table.size(0);
  at::Tensor y = empty_embedding(ids, table, start);
  const at::Tensor dense_ids = ids.contiguous();
  const auto* id = dense_ids.const_data_ptr<int64_t>();
  const auto row_bytes = static_cast<size_t>(h) * table.element_size();
  const int64_t stride_bytes = table.stride(0) * static_cast<int64_t>(table.element_size());
  const auto* from = static_cast<const char*>(table.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  at::parallel_for(0, t, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = id[i] - start;
      char* out = to + static_cast<size_t>(i) * row_bytes;
      if (row >= 0 && row < num_rows)
        std::memcpy(out, from + row * stride_bytes, row_bytes);
      else
        std::memset(out, 0, row_bytes);
    }
  });
  return y;
}

void embedding_wgrad_on_cpu(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start) {
  const at::Tensor dense_ids = ids.contiguous();
  const auto* id = dense_ids.const_data_ptr<int64_t>();
  // Sorted by row, then token: one thread adds all of a row's.
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    if (id[i] >= start && id[i] - start < dw.size(0)) tokens.push_back(i);
  }
  std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return id[a] < id[b]; });
  std::vector<int64_t> rows, starts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = id[tokens[i]] - start;
    if (!rows.empty() && rows.back() == row) continue;
    rows.push_back(row);
    starts.push_back(static_cast<int64_t>(i));
  }
  starts.push_back(static_cast<int64_t>(tokens.size()));
  MEGALITH_CPU_KERNEL(scatter_add)
  ({.dtype = to_dtype(dy.scalar_type()),
    .num_segments = static_cast<int64_t>(rows.size()),
    .columns = dy.size(1),
    .rows = rows.data(),
    .starts = starts.data(),
    .tokens = tokens.data(),
    .dy = dy.const_data_ptr(),
    .dy_stride = dy.stride(0),
    .dw = dw.mutable_data_ptr(),
    .dw_stride = dw.stride(0)});
}

constexpr LinearTable kLinearCpu{.forward = linear_on_cpu,
                                 .dgrad = linear_dgrad_on_cpu,
                                 .wgrad_ = cpu::linear_wgrad_,
                                 .bias_grad_ = bias_grad_on_cpu,
                                 .embedding_forward = embedding_forward_on_cpu,
                                 .embedding_wgrad_ = embedding_wgrad_on_cpu};

constexpr LinearTable kLinearMeta{
    .forward = empty_linear,
    .dgrad = empty_linear_dgrad,
    .wgrad_ = [](const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {},
    .bias_grad_ = [](const at::Tensor&, const at::Tensor&) {},
    .embedding_forward = empty_embedding,
    .embedding_wgrad_ = [](const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t) {}};

#ifdef MEGALITH_GPU_KERNELS
void bias_grad_on_gpu(const at::Tensor& db, const at::Tensor& dy) {
  const int64_t runs = gpu::runs_of_rows(dy.size(0), dy.size(1));
  const at::Tensor parts = at::empty({runs, dy.size(1)}, db.options());
  gpu::on_stream_of<&gpu::sum_rows>(gpu::SumRows{.dtype = to_dtype(dy.scalar_type()),
                                                 .rows = dy.size(0),
                                                 .columns = dy.size(1),
                                                 .stride = dy.stride(0),
                                                 .dy = dy.const_data_ptr(),
                                                 .db = db.mutable_data_ptr(),
                                                 .parts = parts.mutable_data_ptr(),
                                                 .runs = runs},
                                    dy);
}

at::Tensor embedding_forward_on_gpu(const at::Tensor& ids, const at::Tensor& table, int64_t start) {
  at::Tensor y = empty_embedding(ids, table, start);
  const at::Tensor dense_ids = ids.contiguous();
  const auto bytes = static_cast<int64_t>(table.element_size());
  gpu::on_stream_of<&gpu::gather_rows>(gpu::GatherRows{.num_ids = ids.size(0),
                                                       .row_bytes = table.size(1) * bytes,
                                                       .element_bytes = bytes,
                                                       .ids = dense_ids.const_data_ptr<int64_t>(),
                                                       .start = start,
                                                       .num_rows = table.size(0),
                                                       .table = table.const_data_ptr(),
                                                       .table_stride_bytes = table.stride(0) * bytes,
                                                       .y = y.mutable_data_ptr()},
                                       table);
  return y;
}

void embedding_wgrad_on_gpu(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start) {
  const auto [sorted, order] = ids.sort(/*stable=*/true, 0, /*descending=*/false);
  gpu::on_stream_of<&gpu::scatter_rows>(gpu::ScatterRows{.dtype = to_dtype(dy.scalar_type()),
                                                         .num_ids = ids.size(0),
                                                         .columns = dy.size(1),
                                                         .sorted = sorted.const_data_ptr<int64_t>(),
                                                         .order = order.const_data_ptr<int64_t>(),
                                                         .start = start,
                                                         .num_rows = dw.size(0),
                                                         .dy = dy.const_data_ptr(),
                                                         .dy_stride = dy.stride(0),
                                                         .dw = dw.mutable_data_ptr(),
                                                         .dw_stride = dw.stride(0)},
                                        dw);
}

constexpr LinearTable kLinearGpu{.bias_grad_ = bias_grad_on_gpu,
                                 .embedding_forward = embedding_forward_on_gpu,
                                 .embedding_wgrad_ = embedding_wgrad_on_gpu};
#endif

}  // namespace

constexpr Operator<LinearTable> kLinear{.name = "linear",
                                        .reference = &kLinearReference,
                                        .cpu = &kLinearCpu,
                                        .meta = &kLinearMeta,
#ifdef MEGALITH_GPU_KERNELS
                                        .gpu = &kLinearGpu,
#endif
                                        .gpu_aten = &kLinearGpuAten};

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, Kernels kernels) {
  check_linear("linear_forward", x, w, bias);
  return kLinear.run("linear_forward", &LinearTable::forward, kernels, x, w, bias);
}

at::Tensor linear_dgrad(const at::Tensor& dy, const at::Tensor& w, Kernels kernels) {
  constexpr const char* kOp = "linear_dgrad";
  check_floating(kOp, {"dy", dy});
  check_rows(kOp, {"dy", dy});
  check_rows(kOp, {"w", w});
  check_dtype(kOp, {"w", w}, dy.scalar_type());
  check_shape(kOp, {"dy", dy}, {dy.size(0), w.size(0)});
  check_devices(kOp, {{"dy", dy}, {"w", w}});
  return kLinear.run(kOp, &LinearTable::dgrad, kernels, dy, w);
}

void linear_wgrad_(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, bool accumulate, Kernels kernels) {
  constexpr const char* kOp = "linear_wgrad_";
  check_floating(kOp, {"dy", dy});
  check_rows(kOp, {"dy", dy});
  check_rows(kOp, {"x", x});
  check_dtype(kOp, {"x", x}, dy.scalar_type());
  check_shape(kOp, {"x", x}, {dy.size(0), x.size(1)});
  check_rows(kOp, {"dw", dw});
  check_dtype(kOp, {"dw", dw}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"dw", dw}, {dy.size(1), x.size(1)});
  check_devices(kOp, {{"dw", dw}, {"dy", dy}, {"x", x}});
  kLinear.run(kOp, &LinearTable::wgrad_, kernels, dw, dy, x, accumulate);
}

void bias_grad_(const at::Tensor& db, const at::Tensor& dy, Kernels kernels) {
  constexpr const char* kOp = "bias_grad_";
  check_floating(kOp, {"dy", dy});
  check_rows(kOp, {"dy", dy});
  check_dtype(kOp, {"db", db}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"db", db}, {dy.size(1)});
  check_contiguous(kOp, {"db", db});
  check_devices(kOp, {{"db", db}, {"dy", dy}});
  kLinear.run(kOp, &LinearTable::bias_grad_, kernels, db, dy);
}

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& table, int64_t start, Kernels kernels) {
  constexpr const char* kOp = "embedding_forward";
  check_dtype(kOp, {"ids", ids}, at::kLong);
  check_rank(kOp, {"ids", ids}, 1);
  check_floating(kOp, {"table", table});
  check_rows(kOp, {"table", table});
  check_devices(kOp, {{"ids", ids}, {"table", table}});
  return kLinear.run(kOp, &LinearTable::embedding_forward, kernels, ids, table, start);
}

void embedding_wgrad_(const at::Tensor& dw, const at::Tensor& ids, const at::Tensor& dy, int64_t start,
                      Kernels kernels) {
  constexpr const char* kOp = "embedding_wgrad_";
  check_dtype(kOp, {"ids", ids}, at::kLong);
  check_rank(kOp, {"ids", ids}, 1);
  check_floating(kOp, {"dy", dy});
  check_rows(kOp, {"dy", dy});
  check_shape(kOp, {"dy", dy}, {ids.size(0), dy.size(1)});
  check_rows(kOp, {"dw", dw});
  check_dtype(kOp, {"dw", dw}, wide_dtype(dy.scalar_type()));
  check_shape(kOp, {"dw", dw}, {dw.size(0), dy.size(1)});
  check_devices(kOp, {{"dw", dw}, {"ids", ids}, {"dy", dy}});
  kLinear.run(kOp, &LinearTable::embedding_wgrad_, kernels, dw, ids, dy, start);
}

}  // namespace megalith::ops
