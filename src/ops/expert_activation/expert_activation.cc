#include "ops/expert_activation/expert_activation.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "ops/arguments.h"
#include "ops/expert_activation/kernel.h"
#include "ops/gpu/on_stream_of.h"

namespace megalith::ops {
namespace {

using at::Tensor;

void check_expert_activation(const char* op, const Tensor& x, const Tensor& weights, ExpertActivation activation) {
  check_dense_rows(op, {"x", x});
  if (activation.is_gated) check_even_columns(op, {"x", x});
  const bool is_plain = !activation.is_interleaved && activation.up_offset == 0 && activation.limit == 0;
  MEGALITH_CHECK(activation.kind == ActivationKind::kQuickGelu ? activation.is_gated : is_plain,
                 "{}: limits, an offset and interleaved gates are those of a gated quick GELU", op);
  if (weights.defined()) {
    check_dense(op, {"weights", weights}, {x.size(0)}, wide_dtype(x.scalar_type()), {"x", x});
  }
}

// Limits, offsets and ReLU (gpt-oss, T5) have no kernels.
Kernels kernels_for(ExpertActivation activation, Kernels asked) {
  const bool has_kernel = activation.kind != ActivationKind::kQuickGelu && activation.kind != ActivationKind::kRelu;
  return has_kernel ? asked : Kernels::kReference;
}

Tensor empty_expert_activation(const Tensor& x, const Tensor& /*weights*/, ExpertActivation activation) {
  return at::empty({x.size(0), activation.is_gated ? x.size(1) / 2 : x.size(1)}, x.options());
}

std::tuple<Tensor, Tensor> empty_expert_gradients(const Tensor& /*dy*/, const Tensor& x, const Tensor& weights,
                                                  ExpertActivation /*activation*/) {
  return {at::empty_like(x), at::empty({weights.defined() ? x.size(0) : 0}, wide_options(x))};
}

using ExpertActivationLaunch = void (*)(const ExpertActivationCall&, const Tensor& x);

template <ExpertActivationLaunch kLaunch>
Tensor expert_activation_by(const Tensor& x, const Tensor& weights, ExpertActivation activation) {
  Tensor y = empty_expert_activation(x, weights, activation);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .kind = activation.kind,
           .is_gated = activation.is_gated,
           .rows = y.size(0),
           .columns = y.size(1),
           .x = x.const_data_ptr(),
           .weights = data_or_null(weights),
           .y = y.mutable_data_ptr()},
          x);
  return y;
}

template <ExpertActivationLaunch kLaunch>
std::tuple<Tensor, Tensor> expert_activation_backward_by(const Tensor& dy, const Tensor& x, const Tensor& weights,
                                                         ExpertActivation activation) {
  auto [dx, dweights] = empty_expert_gradients(dy, x, weights, activation);
  kLaunch({.dtype = to_dtype(x.scalar_type()),
           .kind = activation.kind,
           .is_gated = activation.is_gated,
           .rows = dy.size(0),
           .columns = dy.size(1),
           .x = x.const_data_ptr(),
           .weights = data_or_null(weights),
           .dy = dy.const_data_ptr(),
           .dx = dx.mutable_data_ptr(),
           .dweights = weights.defined() ? dweights.mutable_data_ptr() : nullptr},
          x);
  return {dx, dweights};
}

void run_expert_activation(const ExpertActivationCall& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(expert_activation)(a);
}
void run_expert_activation_backward(const ExpertActivationCall& a, const Tensor& /*x*/) {
  MEGALITH_CPU_KERNEL(expert_activation_backward)(a);
}

constexpr ExpertActivationTable kExpertActivationCpu{
    .forward = expert_activation_by<run_expert_activation>,
    .backward = expert_activation_backward_by<run_expert_activation_backward>};
constexpr ExpertActivationTable kExpertActivationMeta{.forward = empty_expert_activation,
                                                      .backward = empty_expert_gradients};
#ifdef MEGALITH_GPU_KERNELS
constexpr ExpertActivationTable kExpertActivationGpu{
    .forward = expert_activation_by<gpu::on_stream_of<&gpu::expert_activation, ExpertActivationCall>>,
    .backward =
        expert_activation_backward_by<gpu::on_stream_of<&gpu::expert_activation_backward, ExpertActivationCall>>};
#endif

}  // namespace

constexpr Operator<ExpertActivationTable> kExpertActivation{.name = "expert_activation",
                                                            .reference = &kExpertActivationReference,
                                                            .cpu = &kExpertActivationCpu,
                                                            .meta = &kExpertActivationMeta,
#ifdef MEGALITH_GPU_KERNELS
                                                            .gpu = &kExpertActivationGpu
#endif
};

Tensor expert_activation(const Tensor& x, const Tensor& weights, ExpertActivation activation, Kernels kernels) {
  check_expert_activation("expert_activation", x, weights, activation);
  return kExpertActivation.run("expert_activation", &ExpertActivationTable::forward, kernels_for(activation, kernels),
                               x, weights, activation);
}

std::tuple<Tensor, Tensor> expert_activation_backward(const Tensor& dy, const Tensor& x, const Tensor& weights,
                                                      ExpertActivation activation, Kernels kernels) {
  constexpr const char* kOp = "expert_activation_backward";
  check_expert_activation(kOp, x, weights, activation);
  check_dense(kOp, {"dy", dy}, {x.size(0), activation.is_gated ? x.size(1) / 2 : x.size(1)}, x.scalar_type(), {"x", x});
  return kExpertActivation.run(kOp, &ExpertActivationTable::backward, kernels_for(activation, kernels), dy, x, weights,
                               activation);
}

}  // namespace megalith::ops
