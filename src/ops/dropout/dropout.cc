#include "ops/dropout/dropout.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/dropout/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

Tensor empty_dropout(const Tensor& x, const Tensor& /*row_ids*/, int64_t /*column_start*/, double /*p*/,
                     uint64_t /*key*/) {
  return at::empty(x.sizes(), x.options());
}

Tensor dropout_on_cpu(const Tensor& x, const Tensor& row_ids, int64_t column_start, double p, uint64_t key) {
  const Tensor contiguous = x.contiguous();
  Tensor y = empty_dropout(x, row_ids, column_start, p, key);
  MEGALITH_CPU_KERNEL(dropout)
  ({.dtype = to_dtype(x.scalar_type()),
    .rows = x.size(0),
    .columns = x.size(1),
    .x = contiguous.const_data_ptr(),
    .row_ids = row_ids.const_data_ptr<int64_t>(),
    .column_start = column_start,
    .p = p,
    .key = key,
    .y = y.mutable_data_ptr()});
  return y;
}

constexpr DropoutTable kDropoutCpu{.dropout = dropout_on_cpu};
constexpr DropoutTable kDropoutMeta{.dropout = empty_dropout};

}  // namespace

constexpr Operator<DropoutTable> kDropout{
    .name = "dropout", .reference = &kDropoutReference, .cpu = &kDropoutCpu, .meta = &kDropoutMeta};

Tensor dropout(const Tensor& x, const Tensor& row_ids, int64_t column_start, double p, uint64_t key, Kernels kernels) {
  check_floating("dropout", {"x", x});
  check_rank("dropout", {"x", x}, 2);
  check_dense("dropout", {"row_ids", row_ids}, {x.size(0)}, at::kLong, {"x", x});
  if (!(p >= 0 && p < 1)) throw UserError(fmt::format("dropout: p is {}, but must be in [0, 1)", p));
  if (column_start < 0) {
    throw UserError(fmt::format("dropout: column_start is {}, but must be at least 0", column_start));
  }
  return kDropout.run("dropout", &DropoutTable::dropout, kernels, x, row_ids, column_start, p, key);
}

}  // namespace megalith::ops
