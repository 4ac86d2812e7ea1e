// Interface of swiglu: checks the arguments, then calls the dispatcher or the reference.
#include "ops/swiglu/swiglu.h"

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/library.h"
#include "ops/swiglu/reference.h"

TORCH_LIBRARY_FRAGMENT(megalith, m) {
  m.def("swiglu(Tensor gate_up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor");
}

namespace megalith::ops {
namespace {

void check_gate_up(const char* op, const at::Tensor& gate_up) {
  check_floating(op, {"gate_up", gate_up});
  check_rank(op, {"gate_up", gate_up}, 2);
  check_contiguous(op, {"gate_up", gate_up});
  if (gate_up.size(1) % 2 != 0) {
    throw UserError(
        fmt::format("{}: gate_up has {} columns, but must have an even number: [gate | up]", op, gate_up.size(1)));
  }
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up, Kernels kernels) {
  check_gate_up("swiglu", gate_up);
  if (kernels == Kernels::kReference) return reference::swiglu(gate_up);
  static const auto op = find_op<at::Tensor(const at::Tensor&)>("megalith::swiglu");
  return op.call(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, Kernels kernels) {
  check_gate_up("swiglu_backward", gate_up);
  check_shape("swiglu_backward", {"dy", dy}, {gate_up.size(0), gate_up.size(1) / 2});
  check_dtype("swiglu_backward", {"dy", dy}, gate_up.scalar_type());
  check_contiguous("swiglu_backward", {"dy", dy});
  check_devices("swiglu_backward", {{"gate_up", gate_up}, {"dy", dy}});
  if (kernels == Kernels::kReference) return reference::swiglu_backward(dy, gate_up);
  static const auto op = find_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("megalith::swiglu_backward");
  return op.call(dy, gate_up);
}

}  // namespace megalith::ops
