#include "ops/swiglu/swiglu.h"

#include <ATen/ATen.h>

#include "ops/amax.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"
#include "ops/swiglu/kernel.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_gate_up(const char* op, const Tensor& gate_up) {
  check_dense_rows(op, {"gate_up", gate_up});
  check_even_columns(op, {"gate_up", gate_up});
}

Tensor empty_swiglu(const Tensor& gate_up, const Tensor& /*amax*/) {
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

Tensor empty_swiglu_gradient(const Tensor& /*dy*/, const Tensor& gate_up) { return at::empty_like(gate_up); }

template <void (*kLaunch)(const SwigluForward&, const Tensor& gate_up)>
Tensor swiglu_by(const Tensor& gate_up, const Tensor& amax) {
  Tensor y = empty_swiglu(gate_up, amax);
  kLaunch({.dtype = to_dtype(gate_up.scalar_type()),
           .rows = y.size(0),
           .columns = y.size(1),
           .gate_up = gate_up.const_data_ptr(),
           .y = y.mutable_data_ptr(),
           .amax = gate_up.is_cpu() ? nullptr : mutable_data_or_null(amax)},
          gate_up);
  if (gate_up.is_cpu()) raise_amax(amax, y);
  return y;
}

template <void (*kLaunch)(const SwigluBackward&, const Tensor& gate_up)>
Tensor swiglu_backward_by(const Tensor& dy, const Tensor& gate_up) {
  Tensor dgate_up = empty_swiglu_gradient(dy, gate_up);
  kLaunch({.dtype = to_dtype(gate_up.scalar_type()),
           .rows = dy.size(0),
           .columns = dy.size(1),
           .dy = dy.const_data_ptr(),
           .gate_up = gate_up.const_data_ptr(),
           .dgate_up = dgate_up.mutable_data_ptr()},
          gate_up);
  return dgate_up;
}

void run_swiglu(const SwigluForward& a, const Tensor& /*gate_up*/) { MEGALITH_CPU_KERNEL(swiglu)(a); }
void run_swiglu_backward(const SwigluBackward& a, const Tensor& /*gate_up*/) {
  MEGALITH_CPU_KERNEL(swiglu_backward)(a);
}

constexpr SwigluTable kSwigluCpu{.forward = swiglu_by<run_swiglu>, .backward = swiglu_backward_by<run_swiglu_backward>};
constexpr SwigluTable kSwigluMeta{.forward = empty_swiglu, .backward = empty_swiglu_gradient};
#ifdef MEGALITH_GPU_KERNELS
constexpr SwigluTable kSwigluGpu{
    .forward = swiglu_by<gpu::on_stream_of<&gpu::swiglu, SwigluForward>>,
    .backward = swiglu_backward_by<gpu::on_stream_of<&gpu::swiglu_backward, SwigluBackward>>};
#endif

}  // namespace

constexpr Operator<SwigluTable> kSwiglu{.name = "swiglu",
                                        .reference = &kSwigluReference,
                                        .cpu = &kSwigluCpu,
                                        .meta = &kSwigluMeta,
#ifdef MEGALITH_GPU_KERNELS
                                        .gpu = &kSwigluGpu
#endif
};

Tensor swiglu(const Tensor& gate_up, Kernels kernels, const Tensor& amax) {
  check_gate_up("swiglu", gate_up);
  check_amax("swiglu", amax, gate_up);
  return kSwiglu.run("swiglu", &SwigluTable::forward, kernels, gate_up, amax);
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& gate_up, Kernels kernels) {
  check_gate_up("swiglu_backward", gate_up);
  check_dense("swiglu_backward", {"dy", dy}, {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type(),
              {"gate_up", gate_up});
  return kSwiglu.run("swiglu_backward", &SwigluTable::backward, kernels, dy, gate_up);
}

}  // namespace megalith::ops
