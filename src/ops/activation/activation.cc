#include "ops/activation/activation.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/activation/kernel.h"
#include "ops/arguments.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_activation(const char* op, const Tensor& x, ActivationKind kind, bool is_gated) {
  check_dense_rows(op, {"x", x});
  if (is_gated) check_even_columns(op, {"x", x});
  const bool is_gelu = kind == ActivationKind::kGelu || kind == ActivationKind::kGeluTanh;
  MEGALITH_CHECK(is_gelu || (kind == ActivationKind::kSquaredRelu && !is_gated),
                 "{}: only GELU, gated or not, and an ungated squared ReLU", op);
}

int64_t activation_columns(const Tensor& x, bool is_gated) { return is_gated ? x.size(1) / 2 : x.size(1); }

Tensor empty_activation(const Tensor& x, ActivationKind /*kind*/, bool is_gated) {
  return at::empty({x.size(0), activation_columns(x, is_gated)}, x.options());
}

Tensor empty_activation_gradient(const Tensor& /*dy*/, const Tensor& x, ActivationKind /*kind*/, bool /*is_gated*/) {
  return at::empty_like(x);
}

using ActivationLaunch = void (*)(const ActivationCall&, const Tensor& x);

template <ActivationLaunch kLaunch>
Tensor activation_by(const Tensor& x, ActivationKind kind, bool is_gated) {
  Tensor y = empty_activation(x, kind, is_gated);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .kind = kind,
           .is_gated = is_gated,
           .rows = y.size(0),
           .columns = y.size(1),
           .x = x.const_data_ptr(),
           .y = y.mutable_data_ptr()},
          x);
  return y;
}

template <ActivationLaunch kLaunch>
Tensor activation_backward_by(const Tensor& dy, const Tensor& x, ActivationKind kind, bool is_gated) {
  Tensor dx = empty_activation_gradient(dy, x, kind, is_gated);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .kind = kind,
           .is_gated = is_gated,
           .rows = dy.size(0),
           .columns = dy.size(1),
           .x = x.const_data_ptr(),
           .dy = dy.const_data_ptr(),
           .dx = dx.mutable_data_ptr()},
          x);
  return dx;
}

void run_activation(const ActivationCall& a, const Tensor& /*x*/) { MEGALITH_CPU_KERNEL(activation)(a); }
void run_activation_backward(const ActivationCall& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(activation_backward)(a);
}

constexpr ActivationTable kActivationCpu{.forward = activation_by<run_activation>,
                                         .backward = activation_backward_by<run_activation_backward>};
constexpr ActivationTable kActivationMeta{.forward = empty_activation, .backward = empty_activation_gradient};
#ifdef MEGALITH_GPU_KERNELS
constexpr ActivationTable kActivationGpu{
    .forward = activation_by<gpu::on_stream_of<&gpu::activation, ActivationCall>>,
    .backward = activation_backward_by<gpu::on_stream_of<&gpu::activation_backward, ActivationCall>>};
#endif

}  // namespace

constexpr Operator<ActivationTable> kActivation{.name = "activation",
                                                .reference = &kActivationReference,
                                                .cpu = &kActivationCpu,
                                                .meta = &kActivationMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                .gpu = &kActivationGpu
#endif
};

Tensor activation(const Tensor& x, ActivationKind kind, bool is_gated, Kernels kernels) {
  check_activation("activation", x, kind, is_gated);
  return kActivation.run("activation", &ActivationTable::forward, kernels, x, kind, is_gated);
}

Tensor activation_backward(const Tensor& dy, const Tensor& x, ActivationKind kind, bool is_gated, Kernels kernels) {
  constexpr const char* kOp = "activation_backward";
  check_activation(kOp, x, kind, is_gated);
  check_dense(kOp, {"dy", dy}, {x.size(0), activation_columns(x, is_gated)}, x.scalar_type(), {"x", x});
  return kActivation.run(kOp, &ActivationTable::backward, kernels, dy, x, kind, is_gated);
}

}  // namespace megalith::ops
