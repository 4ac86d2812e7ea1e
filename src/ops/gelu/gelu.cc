#include "ops/gelu/gelu.h"

#include <ATen/ATen.h>

#include "ops/arguments.h"
#include "ops/gelu/kernel.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_gelu(const char* op, const Tensor& x, const Tensor& bias) {
  check_dense_rows(op, {"x", x});
  if (bias.defined()) check_dense(op, {"bias", bias}, {x.size(1)}, x.scalar_type(), {"x", x});
}

void check_gelu_backward(const char* op, const Tensor& dy, const Tensor& x, const Tensor& bias) {
  check_gelu(op, x, bias);
  check_dense(op, {"dy", dy}, x.sizes(), x.scalar_type(), {"x", x});
}

void check_gelu_gate_up(const char* op, const Tensor& gate_up) {
  check_dense_rows(op, {"gate_up", gate_up});
  check_even_columns(op, {"gate_up", gate_up});
}

BiasActivation gelu_arguments(const Tensor& x, const Tensor& bias, const Tensor& y) {
  return {.dtype = to_dtype(x.scalar_type()),
          .rows = x.size(0),
          .columns = x.size(1),
          .x = x.const_data_ptr(),
          .bias = data_or_null(bias),
          .y = y.mutable_data_ptr()};
}

BiasActivationBackward gelu_arguments(const Tensor& dy, const Tensor& x, const Tensor& bias, const Tensor& dx) {
  return {.dtype = to_dtype(x.scalar_type()),
          .rows = x.size(0),
          .columns = x.size(1),
          .dy = dy.const_data_ptr(),
          .x = x.const_data_ptr(),
          .bias = data_or_null(bias),
          .dx = dx.mutable_data_ptr()};
}

template <void (*kLaunch)(const BiasGelu&, const Tensor& x)>
Tensor bias_gelu_by(const Tensor& x, const Tensor& bias, GeluForm form) {
  Tensor y = at::empty_like(x);
  kLaunch({.call = gelu_arguments(x, bias, y), .form = form}, x);
  return y;
}

template <void (*kLaunch)(const BiasGeluBackward&, const Tensor& x)>
Tensor bias_gelu_backward_by(const Tensor& dy, const Tensor& x, const Tensor& bias, GeluForm form) {
  Tensor dx = at::empty_like(x);
  kLaunch({.call = gelu_arguments(dy, x, bias, dx), .form = form}, x);
  return dx;
}

Tensor empty_geglu(const Tensor& gate_up, GeluForm /*form*/) {
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

template <void (*kLaunch)(const GegluForward&, const Tensor& gate_up)>
Tensor geglu_by(const Tensor& gate_up, GeluForm form) {
  Tensor y = empty_geglu(gate_up, form);
  kLaunch({.dtype = to_dtype(gate_up.scalar_type()),
           .form = form,
           .rows = y.size(0),
           .columns = y.size(1),
           .gate_up = gate_up.const_data_ptr(),
           .y = y.mutable_data_ptr()},
          gate_up);
  return y;
}

template <void (*kLaunch)(const GegluBackward&, const Tensor& gate_up)>
Tensor geglu_backward_by(const Tensor& dy, const Tensor& gate_up, GeluForm form) {
  Tensor dgate_up = at::empty_like(gate_up);
  kLaunch({.dtype = to_dtype(gate_up.scalar_type()),
           .form = form,
           .rows = dy.size(0),
           .columns = dy.size(1),
           .dy = dy.const_data_ptr(),
           .gate_up = gate_up.const_data_ptr(),
           .dgate_up = dgate_up.mutable_data_ptr()},
          gate_up);
  return dgate_up;
}

template <void (*kLaunch)(const BiasActivation&, const Tensor& x)>
Tensor squared_relu_by(const Tensor& x, const Tensor& bias) {
  Tensor y = at::empty_like(x);
  kLaunch(gelu_arguments(x, bias, y), x);
  return y;
}

template <void (*kLaunch)(const BiasActivationBackward&, const Tensor& x)>
Tensor squared_relu_backward_by(const Tensor& dy, const Tensor& x, const Tensor& bias) {
  Tensor dx = at::empty_like(x);
  kLaunch(gelu_arguments(dy, x, bias, dx), x);
  return dx;
}

void run_bias_gelu(const BiasGelu& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(bias_gelu)(a); }
void run_bias_gelu_backward(const BiasGeluBackward& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(bias_gelu_backward)(a);
}
void run_geglu(const GegluForward& a, const Tensor& /*gate_up*/) { MEGALITH_CPU_KERNEL(geglu)(a); }
void run_geglu_backward(const GegluBackward& a, const Tensor& /*gate_up*/) { MEGALITH_CPU_KERNEL(geglu_backward)(a); }
void run_squared_relu(const BiasActivation& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(bias_squared_relu)(a); }
void run_squared_relu_backward(const BiasActivationBackward& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(bias_squared_relu_backward)(a);
}

constexpr GeluTable kGeluCpu{.bias_gelu = bias_gelu_by<run_bias_gelu>,
                             .bias_gelu_backward = bias_gelu_backward_by<run_bias_gelu_backward>,
                             .geglu = geglu_by<run_geglu>,
                             .geglu_backward = geglu_backward_by<run_geglu_backward>,
                             .bias_squared_relu = squared_relu_by<run_squared_relu>,
                             .bias_squared_relu_backward = squared_relu_backward_by<run_squared_relu_backward>};

#ifdef MEGALITH_GPU_KERNELS
using gpu::on_stream_of;
constexpr GeluTable kGeluGpu{
    .bias_gelu = bias_gelu_by<on_stream_of<&gpu::bias_gelu, BiasGelu>>,
    .bias_gelu_backward = bias_gelu_backward_by<on_stream_of<&gpu::bias_gelu_backward, BiasGeluBackward>>,
    .geglu = geglu_by<on_stream_of<&gpu::geglu, GegluForward>>,
    .geglu_backward = geglu_backward_by<on_stream_of<&gpu::geglu_backward, GegluBackward>>,
    .bias_squared_relu = squared_relu_by<on_stream_of<&gpu::bias_squared_relu, BiasActivation>>,
    .bias_squared_relu_backward =
        squared_relu_backward_by<on_stream_of<&gpu::bias_squared_relu_backward, BiasActivationBackward>>};
#endif

constexpr GeluTable kGeluMeta{
    .bias_gelu = [](const Tensor& x, const Tensor&, GeluForm) { return at::empty_like(x); },
    .bias_gelu_backward = [](const Tensor&, const Tensor& x, const Tensor&, GeluForm) { return at::empty_like(x); },
    .geglu = empty_geglu,
    .geglu_backward = [](const Tensor&, const Tensor& gate_up, GeluForm) { return at::empty_like(gate_up); },
    .bias_squared_relu = [](const Tensor& x, const Tensor&) { return at::empty_like(x); },
    .bias_squared_relu_backward = [](const Tensor&, const Tensor& x, const Tensor&) { return at::empty_like(x); }};

}  // namespace

constexpr Operator<GeluTable> kGelu{.name = "gelu",
                                    .reference = &kGeluReference,
                                    .cpu = &kGeluCpu,
                                    .meta = &kGeluMeta,
#ifdef MEGALITH_GPU_KERNELS
                                    .gpu = &kGeluGpu
#endif
};

Tensor bias_gelu(const Tensor& x, const Tensor& bias, GeluForm form, Kernels kernels) {
  check_gelu("bias_gelu", x, bias);
  return kGelu.run("bias_gelu", &GeluTable::bias_gelu, kernels, x, bias, form);
}

Tensor bias_gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& bias, GeluForm form, Kernels kernels) {
  check_gelu_backward("bias_gelu_backward", dy, x, bias);
  return kGelu.run("bias_gelu_backward", &GeluTable::bias_gelu_backward, kernels, dy, x, bias, form);
}

Tensor geglu(const Tensor& gate_up, GeluForm form, Kernels kernels) {
  check_gelu_gate_up("geglu", gate_up);
  return kGelu.run("geglu", &GeluTable::geglu, kernels, gate_up, form);
}

Tensor geglu_backward(const Tensor& dy, const Tensor& gate_up, GeluForm form, Kernels kernels) {
  check_gelu_gate_up("geglu_backward", gate_up);
  check_dense("geglu_backward", {"dy", dy}, {gate_up.size(0), gate_up.size(1) / 2}, gate_up.scalar_type(),
              {"gate_up", gate_up});
  return kGelu.run("geglu_backward", &GeluTable::geglu_backward, kernels, dy, gate_up, form);
}

Tensor bias_squared_relu(const Tensor& x, const Tensor& bias, Kernels kernels) {
  check_gelu("bias_squared_relu", x, bias);
  return kGelu.run("bias_squared_relu", &GeluTable::bias_squared_relu, kernels, x, bias);
}

Tensor bias_squared_relu_backward(const Tensor& dy, const Tensor& x, const Tensor& bias, Kernels kernels) {
  check_gelu_backward("bias_squared_relu_backward", dy, x, bias);
  return kGelu.run("bias_squared_relu_backward", &GeluTable::bias_squared_relu_backward, kernels, dy, x, bias);
}

}  // namespace megalith::ops
