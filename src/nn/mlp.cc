#include "nn/mlp.h"

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/recompute.h"

namespace megalith {

namespace {

int64_t ffn_of_rank(int64_t ffn, int tp) {
  if (ffn % tp != 0) {
    throw UserError(fmt::format("tensor_model_parallel_size {} does not divide ffn_hidden_size {}", tp, ffn),
                    fmt::format("set tensor_model_parallel_size to a divisor of {}", ffn));
  }
  return ffn / tp;
}

std::vector<LinearPart> up_parts(const std::string& name, const MlpOptions& options) {
  const LinearPart up{name + "." + options.names.up, options.ffn};
  if (!options.is_gated) return {up};
  return {{name + "." + options.names.gate, options.ffn}, up};
}

}  // namespace

// The biases are added by the linears, whose products end with them at no cost, so the activations get none to add.
Mlp::Mlp(const LayerContext& context, const std::string& name, const MlpOptions& options)
    : ffn_(ffn_of_rank(options.ffn, context.groups->tp->size())),
      activation_(options.activation),
      is_gated_(options.is_gated),
      kernels_(context.kernels),
      keeps_input_(options.keeps_input),
      recomputes_all_(context.recompute.mlp),
      recomputes_activation_(context.recompute.mlp_activation),
      up_(context, name + "." + (is_gated_ ? "gate_up_proj" : options.names.up), options.hidden,
          up_parts(name, options),
          {.role = LinearRole::kColumn,
           .has_bias = options.has_bias,
           .is_transposed = options.is_transposed,
           .init_std = options.init_std,
           // Computed again as a whole, the MLP has its input at hand by then.
           .keeps_input = keeps_input_ || recomputes_all_}),
      down_(context, name + "." + options.names.down, options.ffn, options.hidden,
            {.role = LinearRole::kRow,
             .has_bias = options.has_bias,
             .is_transposed = options.is_transposed,
             .init_std = options.output_init_std,
             .keeps_input = !recomputes_activation_}) {
  MEGALITH_CHECK(
      is_gated_ ? activation_ != ops::ActivationKind::kSquaredRelu : activation_ != ops::ActivationKind::kSilu,
      "{}: {}", name, is_gated_ ? "squared ReLU with a gate" : "SiLU without a gate");
  register_module(up_);
  register_module(down_);
}

at::Tensor Mlp::forward(const at::Tensor& x, const ForwardContext& /*forward*/, const RestoreInput& restore) {
  if (!recomputes_all_) return transform(x, restore);
  MEGALITH_CHECK(keeps_input_ || restore, "an MLP that keeps no input cannot compute it");
  KeepInputs keep;
  if (!keeps_input_) {
    keep = [restore](const auto&) -> RestoreInputs { return [restore] { return std::vector<at::Tensor>{restore()}; }; };
  }
  const BlockBody body = [this](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{transform(inputs[0], {})};
  };
  return recomputed(body, {x}, parameters(), keep)[0];
}

at::Tensor Mlp::transform(const at::Tensor& x, const RestoreInput& restore) {
  const at::Tensor up = up_.forward(x, restore);
  const auto product_of = [activation = activation_, is_gated = is_gated_, kernels = kernels_](const at::Tensor& up) {
    return activated(up, activation, is_gated, kernels);
  };
  const at::Tensor product = product_of(up);
  if (!recomputes_activation_) return down_.forward(product);
  return down_.forward(product, [product_of, up = up.detach()] { return product_of(up); });
}

LayerCost Mlp::cost(const CostShape& shape) const {
  LayerCost cost = Module::cost(shape);
  if (!recomputes_all_) return cost;
  const int64_t input_bytes = up_.cost(shape).kept_bytes;
  cost.recomputed_bytes = cost.kept_bytes - (keeps_input_ ? input_bytes : 0);
  cost.kept_bytes = keeps_input_ ? input_bytes : 0;
  return cost;
}

LayerCost Mlp::own_cost(const CostShape& shape) const {
  const int64_t product = shape.b * shape.s * ffn_ * shape.activation_bytes, up = is_gated_ ? 2 * product : product;
  // Gate and up are kept. In backward there are the gradients of the product, of gate and up, and of what comes in; the
  // product itself, if it was kept, is free by then.
  const int64_t incoming = up_.weight().placement().local_shape[1] * shape.b * shape.s * shape.activation_bytes;
  return {.kept_bytes = up, .working_bytes = up + (recomputes_activation_ ? product : 0) + incoming};
}

}  // namespace megalith
