// Interface of rotary: checks the arguments, then calls the dispatcher or the reference.
#include "ops/rotary/rotary.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/rotary/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("rotary(Tensor x, Tensor cos, Tensor sin, bool is_interleaved) -> Tensor");
  m.def("rotary_backward(Tensor dy, Tensor cos, Tensor sin, bool is_interleaved) -> Tensor");
}

namespace megalith::ops {
namespace {

void check(const char* op, const char* name, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  check_floating(op, {name, x});
  check_rank(op, {name, x}, 4);
  if (x.size(3) > 1 && x.stride(3) != 1) {
    throw UserError(fmt::format("{}: the last dim of {} has stride {}, but must be contiguous", op, name, x.stride(3)));
  }
  check_rank(op, {"cos", cos}, 3);
  const int64_t angle_batch = cos.size(0) == 1 ? 1 : x.size(0);
  check_shape(op, {"cos", cos}, {angle_batch, x.size(1), cos.size(2)});
  check_shape(op, {"sin", sin}, cos.sizes());
  for (const Argument& angles : {Argument{"cos", cos}, Argument{"sin", sin}}) {
    check_dtype(op, angles, wide_dtype(x.scalar_type()));
    check_contiguous(op, angles);
  }
  check_devices(op, {{name, x}, {"cos", cos}, {"sin", sin}});
  if (2 * cos.size(2) > x.size(3)) {
    throw UserError(fmt::format("{}: cos has {} angles a position, but {} channels hold at most {}", op, cos.size(2),
                                x.size(3), x.size(3) / 2));
  }
}

using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                  Kernels kernels) {
  check("rotary", "x", x, cos, sin);
  if (kernels == Kernels::kReference) return reference::rotary(x, cos, sin, is_interleaved);
  static const auto op = find_op<Signature>("megalith::rotary");
  return op.call(x, cos, sin, is_interleaved);
}

at::Tensor rotary_backward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin, bool is_interleaved,
                           Kernels kernels) {
  check("rotary_backward", "dy", dy, cos, sin);
  if (kernels == Kernels::kReference) return reference::rotary_backward(dy, cos, sin, is_interleaved);
  static const auto op = find_op<Signature>("megalith::rotary_backward");
  return op.call(dy, cos, sin, is_interleaved);
}

}  // namespace megalith::ops
