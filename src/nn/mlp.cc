#include "nn/mlp.h"

#include "comm/groups.h"
#include "core/error.h"
#include "nn/activation.h"
#include "nn/option_rules.h"

namespace megalith {

namespace {

void check_width(int64_t ffn, int tp) {
  if (ffn % tp == 0) return;
  throw UserError(fmt::format("tensor_model_parallel_size {} does not divide ffn_hidden_size {}", tp, ffn),
                  fmt::format("set tensor_model_parallel_size to a divisor of {}", ffn));
}

std::vector<LinearPart> up_parts(const LayerContext& context, const std::string& name, int64_t ffn, bool is_gated,
                                 const MlpNames& names) {
  check_width(ffn, context.groups->tp->size());
  const LinearPart up{name + "." + names.up, ffn};
  if (!is_gated) return {up};
  return {{name + "." + names.gate, ffn}, up};
}

ops::ExpertActivation activation_of(const std::string& name, const LayerOptions& options) {
  require_options(name, options, check_mlp);
  return options.expert_activation();
}

}  // namespace

// Linears add biases for free: activations get none.
Mlp::Mlp(const LayerContext& context, const std::string& name, const LayerOptions& options, const MlpSite& site)
    : activation_(site.activation ? *site.activation : activation_of(name, options)),
      kernels_(context.kernels),
      policy_(context.recompute),
      up_(context, name + "." + (activation_.is_gated ? "gate_up_proj" : site.names.up), options.hidden_size,
          up_parts(context, name, site.ffn.value_or(options.ffn_size()), activation_.is_gated, site.names),
          {.role = LinearRole::kColumn,
           .has_bias = options.has_linear_bias(),
           .is_transposed = site.is_transposed,
           .init_std = options.init_method_std,
           .kind = LinearKind::kMlpUp}),
      down_(context, name + "." + site.names.down, site.ffn.value_or(options.ffn_size()), options.hidden_size,
            {.role = LinearRole::kRow,
             .has_bias = options.has_linear_bias(),
             .is_transposed = site.is_transposed,
             .init_std = site.output_init_std,
             .kind = LinearKind::kMlpDown}) {
  const ops::ActivationKind other =
      activation_.is_gated ? ops::ActivationKind::kSquaredRelu : ops::ActivationKind::kSilu;
  MEGALITH_CHECK(activation_.kind != other, "{}: {}", name,
                 activation_.is_gated ? "squared ReLU with a gate" : "SiLU without a gate");
  register_module(up_);
  register_module(down_);
}

at::Tensor Mlp::forward(const Activation& x, const ForwardContext& forward) {
  const at::Tensor rows = forward.dropout_rows();
  Activation up = up_.forward(x, rows);
  if (policy_.mlp) up.kept = up_.again(x.keep(), rows);
  return down_.forward(activated(up, activation_, kernels_, policy_.mlp || policy_.mlp_activation), rows);
}

}  // namespace megalith
