#include "nn/mlp.h"

#include "comm/groups.h"
#include "core/error.h"
#include "nn/recompute.h"
#include "ops/swiglu.h"

namespace megalith {

namespace {

int64_t ffn_of_rank(int64_t ffn, int tp) {
  if (ffn % tp != 0) {
    throw UserError(fmt::format("tensor_model_parallel_size {} does not divide ffn_hidden_size {}", tp, ffn),
                    fmt::format("set tensor_model_parallel_size to a divisor of {}", ffn));
  }
  return ffn / tp;
}

}  // namespace

GatedMlp::GatedMlp(const LayerContext& context, const std::string& name, const MlpOptions& options)
    : ffn_(ffn_of_rank(options.ffn, context.groups->tp->size())),
      kernels_(context.kernels),
      keeps_input_(options.keeps_input),
      recomputes_all_(context.recompute.mlp),
      recomputes_activation_(context.recompute.mlp_activation),
      gate_up_(context, name + ".gate_up_proj", options.hidden,
               {{name + ".gate_proj", options.ffn}, {name + ".up_proj", options.ffn}},
               {.role = LinearRole::kColumn,
                .init_std = options.init_std,
                // Computed again as a whole, the MLP has its input at hand by then.
                .keeps_input = keeps_input_ || recomputes_all_}),
      down_(context, name + ".down_proj", options.ffn, options.hidden,
            {.role = LinearRole::kRow, .init_std = options.output_init_std, .keeps_input = !recomputes_activation_}) {
  register_module(gate_up_);
  register_module(down_);
}

at::Tensor GatedMlp::forward(const at::Tensor& x, const RestoreInput& restore) {
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

at::Tensor GatedMlp::transform(const at::Tensor& x, const RestoreInput& restore) {
  const at::Tensor gate_up = gate_up_.forward(x, restore);
  const at::Tensor product = ops::swiglu(gate_up, kernels_);
  if (!recomputes_activation_) return down_.forward(product);
  return down_.forward(product,
                       [kernels = kernels_, gate_up = gate_up.detach()] { return ops::swiglu(gate_up, kernels); });
}

LayerCost GatedMlp::cost(const CostShape& shape) const {
  LayerCost cost = Module::cost(shape);
  if (!recomputes_all_) return cost;
  const int64_t input_bytes = gate_up_.cost(shape).kept_bytes;
  cost.recomputed_bytes = cost.kept_bytes - (keeps_input_ ? input_bytes : 0);
  cost.kept_bytes = keeps_input_ ? input_bytes : 0;
  return cost;
}

LayerCost GatedMlp::own_cost(const CostShape& shape) const {
  const int64_t product = shape.b * shape.s * ffn_ * shape.activation_bytes;
  // Gate and up are kept. In backward there are the gradients of the product, of gate and up, and of what comes in; the
  // product itself, if it was kept, is free by then.
  const int64_t incoming = gate_up_.weight().placement().local_shape[1] * shape.b * shape.s * shape.activation_bytes;
  return {.kept_bytes = 2 * product, .working_bytes = (recomputes_activation_ ? 3 : 2) * product + incoming};
}

}  // namespace megalith
