#include "nn/norm.h"

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <utility>

#include "comm/groups.h"
#include "nn/function.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/rms_norm/rms_norm.h"

namespace megalith {

at::Tensor ResidualStream::sum() const { return residual.defined() ? delta + residual : delta; }

struct NormFunction : torch::autograd::Function<NormFunction> {
  struct Call {
    Norm* layer;
    Kept x;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* node, const at::Tensor& x, const at::Tensor& /*weight*/,
                            Norm* layer, const Kept& kept) {
    expect_contribution(layer->weight_);
    expect_contribution(layer->bias_);
    Norm::Normalised result = layer->normalise(x);
    node->save_for_backward(std::move(result.statistics));
    hold(node, Call{layer, kept});
    return result.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    Call& call = held<Call>(node);
    const at::Tensor x = call.x.take();
    return {call.layer->differentiate(gradients[0].contiguous(), {}, x, node->get_saved_variables()), {}, {}, {}};
  }
};

// Without a residual (a model's or pipeline stage's first norm) the operator still adds both gradients, rounding once,
// for the bits of an undivided model.
struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* node, const at::Tensor& delta,
                                                const std::optional<at::Tensor>& residual, const at::Tensor& /*weight*/,
                                                Norm* layer) {
    node->set_materialize_grads(false);
    expect_contribution(layer->weight_);
    expect_contribution(layer->bias_);
    const double eps = layer->options_.norm_epsilon;
    at::Tensor y, sum;
    if (!residual) {
      Norm::Normalised result = layer->normalise(delta);
      y = result.y;
      sum = delta;
      torch::autograd::variable_list kept = {sum};
      kept.insert(kept.end(), result.statistics.begin(), result.statistics.end());
      node->save_for_backward(std::move(kept));
    } else if (layer->bias_ == nullptr) {
      at::Tensor inv_rms;
      std::tie(y, sum, inv_rms) =
          ops::add_rms_norm_forward(delta, *residual, layer->rms_weight(), eps, layer->kernels_);
      node->save_for_backward({sum, inv_rms});
    } else {
      at::Tensor mean, inv_std;
      std::tie(y, sum, mean, inv_std) =
          ops::add_layer_norm_forward(delta, *residual, layer->weight_->data(), layer->bias_->data(), eps,
                                      layer->options_.apply_layernorm_1p, layer->kernels_);
      node->save_for_backward({sum, mean, inv_std});
    }
    hold(node, std::pair(layer, residual.has_value()));
    return {y, sum};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* node,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& sum = saved[0];
    const c10::ArrayRef<at::Tensor> statistics(saved.data() + 1, saved.size() - 1);
    // After a model's last norm nothing reads the sum.
    const at::Tensor dy = gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(sum);
    const at::Tensor dsum = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const auto [layer, has_residual] = held<std::pair<Norm*, bool>>(node);
    const at::Tensor dx = layer->differentiate(dy, dsum, sum, statistics);
    return {dx, has_residual ? dx : at::Tensor(), {}, {}};
  }
};

Norm::Norm(const LayerContext& context, const std::string& name, int64_t hidden, const NormOptions& options,
           int64_t num_heads)
    : options_(options), kernels_(context.kernels) {
  const int tp = context.groups->tp->size();
  const bool is_of_heads = num_heads > 0;  // which see all tokens
  const int token_split = context.is_sequence_parallel && !is_of_heads ? tp : 1;
  const auto add = [&](const char* which, double value) {
    Placement placement = Placement::whole(name + which, {hidden});
    placement.replica_axes = {Axis::kDp, Axis::kCp, Axis::kTp};
    placement.partial_axes = {Axis::kDp, Axis::kCp};
    if (token_split > 1 || (is_of_heads && tp > 1)) placement.partial_axes.insert(Axis::kTp);
    return &register_parameter(name + which, std::move(placement),
                               {.dtype = context.dtype,
                                .device = context.device,
                                .init = Init::constant(value),
                                .decay_mult = 0,
                                .role = ParameterRole::kVector});
  };
  weight_ = add(".weight", options.apply_layernorm_1p ? 0 : 1);
  if (options.normalization == Normalization::kLayerNorm) bias_ = add(".bias", 0);
}

at::Tensor Norm::rms_weight() const { return options_.apply_layernorm_1p ? weight_->data() + 1 : weight_->data(); }

Norm::Normalised Norm::normalise(const at::Tensor& x) const {
  if (bias_ == nullptr) {
    auto [y, inv_rms] = ops::rms_norm_forward(x, rms_weight(), options_.norm_epsilon, kernels_);
    return {y, {inv_rms}};
  }
  auto [y, mean, inv_std] = ops::layer_norm_forward(x, weight_->data(), bias_->data(), options_.norm_epsilon,
                                                    options_.apply_layernorm_1p, kernels_);
  return {y, {mean, inv_std}};
}

at::Tensor Norm::differentiate(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                               c10::ArrayRef<at::Tensor> statistics) const {
  const at::Tensor weight = bias_ == nullptr ? rms_weight() : weight_->data();
  at::Tensor dx, dweight, dbias;
  if (bias_ == nullptr) {
    std::tie(dx, dweight) = dsum.defined() ? ops::add_rms_norm_backward(dy, dsum, x, weight, statistics[0], kernels_)
                                           : ops::rms_norm_backward(dy, x, weight, statistics[0], kernels_);
  } else {
    const bool is_zero_centered = options_.apply_layernorm_1p;
    std::tie(dx, dweight, dbias) =
        dsum.defined()
            ? ops::add_layer_norm_backward(dy, dsum, x, weight, statistics[0], statistics[1], is_zero_centered,
                                           kernels_)
            : ops::layer_norm_backward(dy, x, weight, statistics[0], statistics[1], is_zero_centered, kernels_);
    if (bias_->is_trainable()) bias_->add_grad(dbias);
  }
  if (weight_->is_trainable()) weight_->add_grad(dweight);
  return dx;
}

at::Tensor Norm::forward(const Activation& x) {
  if (!is_recording({x.value, weight_->value()})) return normalise(x.value).y;
  return NormFunction::apply(x.value, weight_->value(), this, x.keep());
}

at::Tensor Norm::forward(ResidualStream& stream) {
  const at::Tensor delta = std::exchange(stream.delta, at::Tensor());
  if (!is_recording({delta, stream.residual, weight_->value()})) {
    at::Tensor y;
    if (!stream.residual.defined()) {
      stream.residual = delta;
      y = normalise(delta).y;
    } else if (bias_ == nullptr) {
      std::tie(y, stream.residual, std::ignore) =
          ops::add_rms_norm_forward(delta, stream.residual, rms_weight(), options_.norm_epsilon, kernels_);
    } else {
      std::tie(y, stream.residual, std::ignore, std::ignore) =
          ops::add_layer_norm_forward(delta, stream.residual, weight_->data(), bias_->data(), options_.norm_epsilon,
                                      options_.apply_layernorm_1p, kernels_);
    }
    return y;
  }
  const std::optional<at::Tensor> residual = stream.residual.defined() ? std::optional(stream.residual) : std::nullopt;
  const auto outputs = AddNormFunction::apply(delta, residual, weight_->value(), this);
  stream.residual = outputs[1];
  return outputs[0];
}

Kept Norm::again(Kept x) const {
  return x.then([this](const at::Tensor& input) { return normalise(input).y; });
}

}  // namespace megalith
