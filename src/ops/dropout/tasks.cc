// Registers dropout for the CPU and for the meta device.
#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/dropout/kernel.h"
#include "ops/library.h"

namespace megalith::ops::cpu {
namespace {

at::Tensor empty_result(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

at::Tensor dropout(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, int64_t key) {
  const at::Tensor contiguous = x.contiguous();
  at::Tensor y = empty_result(x);
  MEGALITH_CPU_KERNEL(dropout)
  ({.dtype = to_dtype(x.scalar_type()),
    .rows = x.size(0),
    .columns = x.size(1),
    .x = contiguous.const_data_ptr(),
    .row_ids = row_ids.const_data_ptr<int64_t>(),
    .column_start = column_start,
    .p = p,
    .key = static_cast<uint64_t>(key),
    .y = y.mutable_data_ptr()});
  return y;
}

}  // namespace
}  // namespace megalith::ops::cpu

TORCH_LIBRARY_IMPL(megalith, CPU, m) { m.impl("dropout", TORCH_FN(megalith::ops::cpu::dropout)); }

TORCH_LIBRARY_IMPL(megalith, Meta, m) {
  m.impl("dropout", [](const at::Tensor& x, const at::Tensor&, int64_t, double, int64_t) {
    return megalith::ops::cpu::empty_result(x);
  });
}
