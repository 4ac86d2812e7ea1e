#include "nn/mlp.h"

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"

namespace megalith {

namespace {

void check_width(int64_t ffn, int tp) {
  if (ffn % tp == 0) return;
  throw UserError(fmt::format("tensor_model_parallel_size {} does not divide ffn_hidden_size {}", tp, ffn),
                  fmt::format("set tensor_model_parallel_size to a divisor of {}", ffn));
}

std::vector<LinearPart> up_parts(const LayerContext& context, const std::string& name, const MlpOptions& options) {
  check_width(options.ffn, context.groups->tp->size());
  const LinearPart up{name + "." + options.names.up, options.ffn};
  if (!options.is_gated) return {up};
  return {{name + "." + options.names.gate, options.ffn}, up};
}

}  // namespace

// The biases are added by the linears, whose products end with them at no cost, so the activations get none to add.
Mlp::Mlp(const LayerContext& context, const std::string& name, const MlpOptions& options)
    : activation_(options.activation),
      is_gated_(options.is_gated),
      kernels_(context.kernels),
      policy_(context.recompute),
      up_(context, name + "." + (is_gated_ ? "gate_up_proj" : options.names.up), options.hidden,
          up_parts(context, name, options),
          {.role = LinearRole::kColumn,
           .has_bias = options.has_bias,
           .is_transposed = options.is_transposed,
           .init_std = options.init_std}),
      down_(context, name + "." + options.names.down, options.ffn, options.hidden,
            {.role = LinearRole::kRow,
             .has_bias = options.has_bias,
             .is_transposed = options.is_transposed,
             .init_std = options.output_init_std}) {
  MEGALITH_CHECK(
      is_gated_ ? activation_ != ops::ActivationKind::kSquaredRelu : activation_ != ops::ActivationKind::kSilu,
      "{}: {}", name, is_gated_ ? "squared ReLU with a gate" : "SiLU without a gate");
  register_module(up_);
  register_module(down_);
}

at::Tensor Mlp::forward(const Activation& x, const ForwardContext& /*forward*/) {
  Activation up = up_.forward(x);
  if (policy_.mlp) up.kept = up_.again(x.keep());
  return down_.forward(activated(up, activation_, is_gated_, kernels_, policy_.mlp || policy_.mlp_activation));
}

}  // namespace megalith
