#include "nn/projection_norm.h"

#include <ATen/ATen.h>

#include <tuple>

#include "comm/groups.h"
#include "nn/function.h"
#include "ops/arguments.h"
#include "ops/rms_norm/rms_norm.h"

namespace megalith {

struct ProjectionNormFunction : torch::autograd::Function<ProjectionNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            ProjectionNorm* layer) {
    expect_contribution(layer->weight_);
    ProjectionNorm::Normalised result = layer->normalise(x);
    node->save_for_backward({x, result.inv_rms});
    hold(node, layer);
    return result.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const ProjectionNorm* layer = held<ProjectionNorm*>(node);
    return {layer->differentiate(gradients[0].contiguous(), saved[0], saved[1]), {}, {}};
  }
};

ProjectionNorm::ProjectionNorm(const LayerContext& context, const std::string& name, int64_t channels,
                               const NormOptions& options)
    : epsilon_(options.norm_epsilon), channels_(channels), tp_(context.groups->tp.get()), kernels_(context.kernels) {
  if (options.normalization != Normalization::kRmsNorm) {
    throw UserError(
        fmt::format("{}: a norm of a whole projection is for normalization RMSNorm, which is LayerNorm", name),
        "set normalization to RMSNorm, or qk_layernorm_scope to head");
  }
  const int64_t own = div_exact(channels, tp_->size());
  Placement placement{.local_shape = {own}, .pieces = {}};
  placement.pieces.push_back({.name = name + ".weight",
                              .shape = {channels},
                              .canonical = {{own * tp_->rank()}, {own}},
                              .local = {{0}, {own}}});
  placement.replica_axes = placement.partial_axes = {Axis::kDp, Axis::kCp};
  weight_ = &register_parameter(name + ".weight", std::move(placement),
                                {.dtype = context.dtype,
                                 .device = context.device,
                                 .init = Init::constant(1),
                                 .decay_mult = 0,
                                 .role = ParameterRole::kVector});
}

ProjectionNorm::Normalised ProjectionNorm::normalise(const at::Tensor& x) const {
  if (tp_->size() == 1) {
    auto [y, inv_rms] = ops::rms_norm_forward(x, weight_->data(), epsilon_, kernels_);
    return {y, inv_rms};
  }
  const at::Tensor wide = x.to(ops::wide_dtype(x.scalar_type()));
  const at::Tensor squares = wide.square().sum(-1);
  tp_->all_reduce(squares, ReduceOp::kSum, weight_->name()).wait();
  const at::Tensor inv_rms = (squares / static_cast<double>(channels_) + epsilon_).rsqrt();
  return {(wide * inv_rms.unsqueeze(-1)).to(x.scalar_type()) * weight_->data(), inv_rms};
}

at::Tensor ProjectionNorm::differentiate(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& inv_rms) const {
  const at::Tensor weight = weight_->data();
  at::Tensor dx, dweight;
  if (tp_->size() == 1) {
    std::tie(dx, dweight) = ops::rms_norm_backward(dy, x, weight, inv_rms, kernels_);
  } else {
    const at::ScalarType wide = ops::wide_dtype(x.scalar_type());
    const at::Tensor scale = inv_rms.unsqueeze(-1), normed = x.to(wide) * scale;
    const at::Tensor g = dy.to(wide) * weight.to(wide);
    const at::Tensor products = (g * normed).sum(-1, /*keepdim=*/true);
    Work sum = tp_->all_reduce(products, ReduceOp::kSum, weight_->name());
    // Forward multiplied rounded values, so the weight's gradient must too.
    dweight = (dy.to(wide) * normed.to(x.scalar_type()).to(wide)).sum(0);
    sum.wait();
    dx = ((g - normed * (products / static_cast<double>(channels_))) * scale).to(x.scalar_type());
  }
  if (weight_->is_trainable()) weight_->add_grad(dweight);
  return dx;
}

at::Tensor ProjectionNorm::forward(const at::Tensor& x) {
  if (!is_recording({x, weight_->value()})) return normalise(x).y;
  return ProjectionNormFunction::apply(x, weight_->value(), this);
}

}  // namespace megalith
