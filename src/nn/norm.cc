// Functions of the normalisation layers. The statistics are kept, the normalised activations are not.
#include "nn/norm.h"

#include <utility>

#include "comm/groups.h"
#include "nn/function.h"
#include "ops/rms_norm.h"

namespace megalith {

at::Tensor ResidualStream::sum() const { return residual.defined() ? delta + residual : delta; }

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            RmsNorm* layer) {
    expect_contribution(layer->weight_);
    auto [y, inv_rms] = ops::rms_norm_forward(x, layer->weight_->data(), layer->eps_, layer->kernels_);
    node->save_for_backward({x, inv_rms});
    hold(node, layer);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    RmsNorm& layer = *held<RmsNorm*>(node);
    const auto saved = node->get_saved_variables();
    auto [dx, dweight] =
        ops::rms_norm_backward(gradients[0].contiguous(), saved[0], layer.weight_->data(), saved[1], layer.kernels_);
    if (layer.weight_->is_trainable()) layer.weight_->add_grad(dweight);
    return {dx, {}, {}};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, const at::Tensor& delta,
                                                const at::Tensor& residual, const at::Tensor& /*weight*/,
                                                RmsNorm* layer) {
    node->set_materialize_grads(false);
    expect_contribution(layer->weight_);
    auto [y, sum, inv_rms] =
        ops::add_rms_norm_forward(delta, residual, layer->weight_->data(), layer->eps_, layer->kernels_);
    node->save_for_backward({sum, inv_rms});
    hold(node, layer);
    return {y, sum};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    RmsNorm& layer = *held<RmsNorm*>(node);
    const auto saved = node->get_saved_variables();
    const at::Tensor &sum = saved[0], &inv_rms = saved[1], weight = layer.weight_->data();
    // After the last norm of a model nothing reads the sum any more.
    const at::Tensor dy = gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(sum);
    auto [dx, dweight] = gradients[1].defined() ? ops::add_rms_norm_backward(dy, gradients[1].contiguous(), sum, weight,
                                                                             inv_rms, layer.kernels_)
                                                : ops::rms_norm_backward(dy, sum, weight, inv_rms, layer.kernels_);
    if (layer.weight_->is_trainable()) layer.weight_->add_grad(dweight);
    return {dx, dx, {}, {}};
  }
};

RmsNorm::RmsNorm(const LayerContext& context, const std::string& name, int64_t hidden, double eps)
    : eps_(eps), kernels_(context.kernels) {
  const int tp = context.groups->tp->size();
  token_split_ = context.is_sequence_parallel ? tp : 1;
  Placement placement = Placement::whole(name + ".weight", {hidden});
  placement.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
  placement.partial_axes = {Axis::kDp, Axis::kCp};
  if (token_split_ > 1) placement.partial_axes.insert(Axis::kTp);
  weight_ = &register_parameter(
      name + ".weight", std::move(placement),
      {.dtype = context.dtype, .device = context.device, .init = Init::constant(1), .decay_mult = 0});
}

at::Tensor RmsNorm::forward(const at::Tensor& x) {
  if (!is_recording({x, weight_->value()})) {
    return std::get<0>(ops::rms_norm_forward(x, weight_->data(), eps_, kernels_));
  }
  return RmsNormFunction::apply(x, weight_->value(), this);
}

at::Tensor RmsNorm::forward(ResidualStream& stream) {
  const at::Tensor delta = std::exchange(stream.delta, at::Tensor());
  if (!stream.residual.defined()) {
    stream.residual = delta;
    return forward(delta);
  }
  if (!is_recording({delta, stream.residual, weight_->value()})) {
    auto [y, sum, inv_rms] = ops::add_rms_norm_forward(delta, stream.residual, weight_->data(), eps_, kernels_);
    stream.residual = sum;
    return y;
  }
  const auto outputs = AddRmsNormFunction::apply(delta, stream.residual, weight_->value(), this);
  stream.residual = outputs[1];
  return outputs[0];
}

std::function<at::Tensor()> RmsNorm::recomputation(const ResidualStream& stream) const {
  return [this, x = stream.residual.detach()] {
    return std::get<0>(ops::rms_norm_forward(x, weight_->data(), eps_, kernels_));
  };
}

LayerCost RmsNorm::own_cost(const CostShape& shape) const {
  const int64_t tokens = shape.b * shape.s / token_split_;
  const int64_t statistic_bytes = 4;
  return {.kept_bytes = tokens * (weight_->placement().local_shape[0] * shape.activation_bytes + statistic_bytes)};
}

}  // namespace megalith
