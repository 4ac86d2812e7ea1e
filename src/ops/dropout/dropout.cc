#include "ops/dropout/dropout.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/dropout/kernel.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

using at::Tensor;

Tensor empty_dropout(const Tensor& x, const Tensor& /*row_ids*/, int64_t /*column_start*/, double /*p*/,
                     uint64_t /*key*/) {
  return at::empty(x.sizes(), x.options());
}

template <void (*kLaunch)(const DropoutCall&, const Tensor& x)>
Tensor dropout_by(const Tensor& x, const Tensor& row_ids, int64_t column_start, double p, uint64_t key) {
  const Tensor contiguous = x.contiguous();
  Tensor y = empty_dropout(x, row_ids, column_start, p, key);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .rows = x.size(0),
           .columns = x.size(1),
           .x = contiguous.const_data_ptr(),
           .row_ids = row_ids.const_data_ptr<int64_t>(),
           .column_start = column_start,
           .p = p,
           .key = key,
           .y = y.mutable_data_ptr()},
          x);
  return y;
}

void run_dropout(const DropoutCall& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(dropout)(a); }

constexpr DropoutTable kDropoutCpu{.dropout = dropout_by<run_dropout>};
constexpr DropoutTable kDropoutMeta{.dropout = empty_dropout};
#ifdef MEGALITH_GPU_KERNELS
constexpr DropoutTable kDropoutGpu{.dropout = dropout_by<gpu::on_stream_of<&gpu::dropout, DropoutCall>>};
#endif

}  // namespace

constexpr Operator<DropoutTable> kDropout{.name = "dropout",
                                          .reference = &kDropoutReference,
                                          .cpu = &kDropoutCpu,
                                          .meta = &kDropoutMeta,
#ifdef MEGALITH_GPU_KERNELS
                                          .gpu = &kDropoutGpu
#endif
};

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
