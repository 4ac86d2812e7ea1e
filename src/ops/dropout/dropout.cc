// Interface of dropout: checks the arguments, then calls the dispatcher or the reference.
#include "ops/dropout/dropout.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/dropout/reference.h"
#include "ops/library.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("dropout(Tensor x, Tensor row_ids, int column_start, float p, int key) -> Tensor");
}

namespace megalith::ops {

at::Tensor dropout(const at::Tensor& x, const at::Tensor& row_ids, int64_t column_start, double p, uint64_t key,
                   Kernels kernels) {
  check_floating("dropout", {"x", x});
  check_rank("dropout", {"x", x}, 2);
  check_dtype("dropout", {"row_ids", row_ids}, at::kLong);
  check_shape("dropout", {"row_ids", row_ids}, {x.size(0)});
  check_contiguous("dropout", {"row_ids", row_ids});
  check_devices("dropout", {{"x", x}, {"row_ids", row_ids}});
  if (!(p >= 0 && p < 1)) throw UserError(fmt::format("dropout: p is {}, but must be in [0, 1)", p));
  if (column_start < 0)
    throw UserError(fmt::format("dropout: column_start is {}, but must be at least 0", column_start));
  if (kernels == Kernels::kReference) return reference::dropout(x, row_ids, column_start, p, key);
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, double, int64_t)>("megalith::dropout");
  return op.call(x, row_ids, column_start, p, static_cast<int64_t>(key));
}

}  // namespace megalith::ops
